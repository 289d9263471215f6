"""Checkpoints of several processes: one folder, which all of them agree on, or an error on all."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import pa_trial
from pa_checkpoint import CheckpointError
from pa_distributed import OtherProcessError, RanksDifferError, gather_objects
from pa_trial import Batch, InvalidCheckpointException, PyTorchCallback
from pa_trial.collectives import rank
from tests.support.trials import TinyTrial, callback, fit, raising

pytestmark = pytest.mark.runs_on("two_ranks")


def saved(folder: Path, length: int = 1) -> Path:
    """Train on both processes, and return the folder of the checkpoint, which callbacks of the chief hear of."""
    trial = fit(TinyTrial, folder, max_length=Batch(length))
    (checkpoint,) = folder.iterdir()
    assert len(trial.heard.folders) == (1 if rank() == 0 else 0)
    return checkpoint


def resume(checkpoint: Path) -> TinyTrial:
    """Continue from a checkpoint."""
    return fit(TinyTrial, checkpoint.parent, max_length=Batch(3), latest_checkpoint=checkpoint)


def test_each_process_has_a_file_and_the_chief_writes_the_rest(shared_tmp_path: Path) -> None:
    """Both continue from it, and find the same one to be the newest."""
    checkpoint = saved(shared_tmp_path)
    assert (checkpoint / "state_dict.pth").exists()
    assert "rng_state" in torch.load(checkpoint / "rank_1.pth", weights_only=True)
    assert isinstance(pa_trial.load_trial_from_checkpoint_path(checkpoint), TinyTrial)
    assert resume(checkpoint).trained == [(0, 1), (0, 2)]
    with pa_trial.init(checkpoint_dir=shared_tmp_path) as context:
        names = gather_objects(context.get_latest_checkpoint())
    assert names[0] == names[1]
    assert names[0] != checkpoint.name


@pytest.mark.parametrize("name", ["rank_1.pth", "state_dict.pth"])
def test_damage_that_one_process_meets_is_refused_by_both(name: str, shared_tmp_path: Path) -> None:
    """Nobody waits for the other."""
    checkpoint = saved(shared_tmp_path)
    if rank() == 0:
        content = bytearray((checkpoint / name).read_bytes())
        content[len(content) // 2] ^= 1
        (checkpoint / name).write_bytes(content)
    gather_objects(None)
    with pytest.raises(InvalidCheckpointException, match="damaged") as error:
        resume(checkpoint)
    assert name in str(error.value)


def test_different_checkpoints_under_one_name_are_refused(shared_tmp_path: Path) -> None:
    """Each process reads a folder of its own machine: both have to hold the same."""
    first, second = saved(shared_tmp_path / "first"), saved(shared_tmp_path / "second", length=2)
    if rank() == 0:
        second.rename(second.with_name(first.name))
    gather_objects(None)
    second = second.with_name(first.name)
    with pytest.raises(RanksDifferError, match=r"under the same name(.|\n)*on a file system that all machines share"):
        resume((first, second)[rank()])


def test_the_same_checkpoint_may_be_in_another_place(shared_tmp_path: Path) -> None:
    """Its content counts."""
    checkpoint = saved(shared_tmp_path / "first")
    if rank() == 0:
        shutil.copytree(checkpoint, shared_tmp_path / "second" / checkpoint.name)
    gather_objects(None)
    assert resume((checkpoint, shared_tmp_path / "second" / checkpoint.name)[rank()]).trained == [(0, 1), (0, 2)]


@pytest.mark.parametrize(
    ("failing", "on_chief", "on_others"),
    [
        (callback(state_dict=lambda: {"layer": nn.ReLU()}), CheckpointError, CheckpointError),
        (callback(on_checkpoint_save_start=raising(LookupError("mine"))), LookupError, OtherProcessError),
    ],
    ids=["what cannot be loaded again", "a failing callback"],
)
def test_a_checkpoint_that_the_chief_cannot_save_is_an_error_on_all(
    failing: PyTorchCallback, on_chief: type[Exception], on_others: type[Exception], shared_tmp_path: Path
) -> None:
    """And nothing is left of it."""
    with pytest.raises((on_chief, on_others)[rank()]):
        fit(TinyTrial, shared_tmp_path, {"failing": failing}, max_length=Batch(1))
    gather_objects(None)
    assert list(shared_tmp_path.iterdir()) == []
