"""Damaged training states: an older one is resumed instead, or an error says why; none is restored in part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from pa_core import CheckpointError, SaveTrainingStateCallback, TrainerCallback
from pa_core.storage import StateFolder
from tests.launching import Launch
from tests.support.pa_core.damage.damaged_states import change_document
from tests.support.pa_core.damage.saved_runs import EPOCHS, SavedRuns, make, save_runs
from tests.support.pa_core.training_states.small_runs import (
    DrawingDataset,
    InterruptAt,
    Interrupted,
    make_trainer,
    train,
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> SavedRuns:
    """States of a run that was interrupted."""
    return save_runs(tmp_path_factory.mktemp("states"))


def test_a_callback_that_refuses_its_state_is_named(saved: SavedRuns, tmp_path: Path) -> None:
    """The error tells which one it is, from which state, and what it has raised."""
    folder = saved.damaged(
        tmp_path / "states",
        lambda state: change_document(
            state, lambda document: document["callbacks"].update({name: {} for name in document["callbacks"]})
        ),
    )
    with pytest.raises(CheckpointError, match=r"(?s)step_10.*the callback .*SampleLog: .*KeyError: 'steps'"):
        train(make(), EPOCHS, resume_from=folder)


LOADERS: dict[str, Callable[[Any], object]] = {
    "the generator .* raised": lambda loader: loader["generators"].update(dict.fromkeys(loader["generators"], "x")),
    "where the epoch of the loader began": lambda loader: loader.update(epoch_start=None),
}


@pytest.mark.parametrize("told", LOADERS)
def test_what_a_custom_loader_cannot_resume_from_is_named(told: str, tmp_path: Path) -> None:
    """The error tells what it is, and what it has raised."""

    def run(*callbacks: TrainerCallback) -> None:
        loader = DataLoader(DrawingDataset(16), batch_size=4, shuffle=True, generator=torch.Generator())
        make_trainer(*callbacks).train(loader, 1, resume_from=tmp_path / "states", resume_missing="start")

    saving = SaveTrainingStateCallback(tmp_path / "states", save_every_n_steps=2)
    with pytest.raises(Interrupted):
        run(saving, InterruptAt("on_train_step_end", 3))
    state = StateFolder(tmp_path / "states").records()[-1].path
    change_document(state, lambda document: LOADERS[told](document["ranks"][0]["loaders"]["training"]))
    with pytest.raises(CheckpointError, match=told):
        run()


ON_TWO_RANKS = """
import contextlib, os, pathlib, shutil, sys
import torch
from pa_core import CheckpointError, Trainer
from pa_core.testing import make_regression

folder, rank = pathlib.Path(sys.argv[1]), int(os.environ["RANK"])
own = folder / f"copy_of_rank_{rank}"
told = (folder.parent / f"told_by_{rank}").open("w")


def trainer():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    return Trainer(model, torch.nn.MSELoss(), torch.optim.Adam(model.parameters()), callbacks=[])


def train(one, **options):
    one.train(make_regression(32), options.pop("num_epochs", 1), train_dataloader_kwargs={"num_workers": 0}, **options)


first = trainer()
train(first)
first.save_training_state(folder / "state")
train(first)
first.save_training_state(folder / "other")
torch.distributed.barrier()
os.chdir(shutil.copytree(folder, own, ignore=shutil.ignore_patterns("copy*", "*.py", "*.log")))


def attempt(what):
    torch.distributed.barrier()
    second = trainer()
    before = [parameter.tolist() for parameter in second.model.parameters()]
    with contextlib.suppress(CheckpointError):
        try:
            train(second, num_epochs=2, resume_from="state")
            print(f"{what}: resumed", file=told)
        except CheckpointError as error:
            unchanged = before == [parameter.tolist() for parameter in second.model.parameters()]
            given = " ".join(error.given.split())
            print(f"{what}: {'' if unchanged else 'partly '}{error.problem} {given}", file=told)
            raise


attempt("whole copies")
tensors = pathlib.Path("state", "models.safetensors")
if rank == 1:
    whole = tensors.read_bytes()
    tensors.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
attempt("one flipped bit")
if rank == 1:
    shutil.rmtree("state")
    shutil.copytree("other", "state")
attempt("another state")
if rank == 1:
    shutil.rmtree("state")
attempt("no state")
"""


def test_every_rank_verifies_what_it_reads_and_all_read_the_same_state(launch: Launch, tmp_path: Path) -> None:
    """One flipped bit, another state or none in the copy of one rank is an error on all, and nothing is loaded."""
    folder = tmp_path / "copies"
    folder.mkdir()
    launched = launch(ON_TWO_RANKS, str(folder), ranks=2)
    assert launched.status == 0, launched.output
    for rank in (0, 1):
        told = (tmp_path / f"told_by_{rank}").read_text().splitlines()
        lines = dict(line.split(": ", maxsplit=1) for line in told)
        assert lines["whole copies"] == "resumed"
        for what, found in (
            ("one flipped bit", "models.safetensors: the SHA-256 digest"),
            ("another state", "is another state, after update"),
            ("no state", "state"),
        ):
            line = lines[what]
            assert "nothing was loaded" in line
            assert found in line
            assert "(rank 1)" in line
            assert "(rank 0)" not in line
            assert "partly" not in line
