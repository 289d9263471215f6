"""Damaged training states: an older one is resumed instead, or an error says why; none is restored in part."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.data import DataLoader

from pa_checkpoint import Folder
from pa_core import CheckpointError, SaveTrainingStateCallback, TrainerCallback, distributed, gather_objects
from pa_core.training_state.saved_runs import find_saved_run
from tests.support.pa_core.damage.damaged_states import change_document, fit_digests
from tests.support.pa_core.damage.saved_runs import EPOCHS, SavedRuns, make, restored, save_runs
from tests.support.pa_core.training_states.small_runs import (
    DrawingDataset,
    InterruptAt,
    Interrupted,
    fingerprint,
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
    "the beginning of the loader": lambda loader: loader.update(epoch_start=None),
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
    state = Folder(tmp_path / "states").records()[-1].path
    change_document(state, lambda document: LOADERS[told](document["ranks"][0]["loaders"]["training"]))
    with pytest.raises(CheckpointError, match=told):
        run()


def flip_a_bit(state: Path) -> None:
    """Change a weight."""
    tensors = state / "models.safetensors"
    whole = tensors.read_bytes()
    tensors.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))


def exchange(state: Path) -> None:
    """Put another state in its place."""
    shutil.rmtree(state)
    state.with_name("other").rename(state)


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize(
    ("change", "found"),
    [
        (flip_a_bit, "models.safetensors: the digest"),
        (exchange, "is another state, after update"),
        (shutil.rmtree, "state"),
    ],
    ids=["one flipped bit", "another state", "no state"],
)
def test_every_rank_verifies_what_it_reads_and_all_read_the_same_state(
    change: Callable[[Path], object], found: str, shared_tmp_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong with the copy of one rank is an error on all, and nothing is loaded."""
    trainer = make_trainer()
    for name, num_epochs in (("state", 1), ("other", 2)):
        train(trainer, num_epochs)
        trainer.save_training_state(shared_tmp_path / name)
    gather_objects(None)
    monkeypatch.chdir(shutil.copytree(shared_tmp_path, tmp_path / "copies", ignore=shutil.ignore_patterns("copies")))
    gather_objects(None)
    train(make_trainer(), 2, resume_from="state")
    if distributed.rank() == 1:
        change(Path("state"))
    gather_objects(None)
    second = make_trainer(seed=2)
    before = fingerprint(second)["weights"]
    with pytest.raises(CheckpointError, match="nothing was loaded") as refused:
        train(second, 2, resume_from="state")
    assert fingerprint(second)["weights"] == before
    given = " ".join(refused.value.given.split())
    assert found in given
    assert "(rank 1)" in given
    assert "(rank 0)" not in given


MISSING = object()


def with_entry(path: str, value: Any) -> Callable[[Path], None]:
    """What replaces an entry of the document of a state, or leaves it out."""

    def change(document: Any) -> None:
        *outer, last = (int(name) if name.isdigit() else name for name in path.split("/"))
        for name in outer:
            document = document[name]
        if value is MISSING:
            del document[last]
        else:
            document[last] = value

    return lambda state: change_document(state, change)


def with_tensor(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Path], None]:
    """What replaces a tensor of a state."""

    def write(state: Path) -> None:
        file = state / f"{name.partition('/')[0]}.safetensors"
        tensors = load_file(file)
        save_file({**tensors, name: change(tensors[name])}, file)
        fit_digests(state)

    return write


PASSED_OVER: dict[str, tuple[str, Any]] = {
    "'other' is not a valid Phase": ("run/position/phase", "other"),
    "missing 1 required positional argument: 'updates'": ("run/position/updates", MISSING),
    "unexpected keyword argument 'batches'": ("run/position/batches", 3),
    "KeyError: 'seed'": ("run/seed", MISSING),
    "algorithm='other'": ("run/algorithm", "other"),
    "KeyError: 'schedulers'": ("schedulers", MISSING),
    "missing 1 required positional argument: 'weights'": ("models/model/weights", MISSING),
    "AttributeError: 'NoneType' object has no attribute 'items'": ("optimizers", None),
    "missing 1 required positional argument: 'losses'": ("ranks/0/losses", MISSING),
}
"""By what is told of it, an entry of the document and what stands in its place."""

REFUSED: dict[str, Callable[[Path], None]] = {
    "optimizers.optimizer.state: param_groups.0.eps is [], not a number": with_entry(
        "optimizers/optimizer/state/param_groups/0/eps", []
    ),
    "optimizers.optimizer.state: state.0.step is of whole numbers": with_tensor(
        "optimizers/optimizer/state/state/0/step", Tensor.int
    ),
    "optimizers.optimizer.state: state.0 is 'x', not a dictionary": with_entry(
        "optimizers/optimizer/state/state/$dict/0/1", "x"
    ),
    "schedulers.scheduler: last_epoch is 'ten', not a number": with_entry("schedulers/scheduler/last_epoch", "ten"),
    "schedulers.scheduler: base_lrs.0 is None, not a number": with_entry("schedulers/scheduler/base_lrs", [None]),
    "layers.0.bias: None in the state": with_entry("models/model/weights/layers.0.bias", None),
    "This is not the state of a run history": with_entry("history/metrics", {"loss": 3}),
    "a registered object: loading it raised KeyError": with_entry("objects/0/state", {}),
}


@pytest.mark.parametrize("told", PASSED_OVER)
def test_a_state_of_another_form_is_passed_over(
    told: str, saved: SavedRuns, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """Where the older one is resumed, a warning tells of the newer one."""
    found = find_saved_run(saved.damaged(tmp_path / "states", with_entry(*PASSED_OVER[told])))
    assert found.position.updates == 5
    (warning,) = (str(one.message) for one in recwarn)
    assert f"{saved.newest.name} is skipped" in warning
    assert told in warning


@pytest.mark.parametrize("told", REFUSED)
def test_a_state_that_an_object_cannot_take_changes_nothing(told: str, saved: SavedRuns, tmp_path: Path) -> None:
    """The error names the entry, whichever object of the run it is for."""
    trainer = make()
    before = restored(trainer)
    with pytest.raises(CheckpointError) as caught:
        train(trainer, EPOCHS, resume_from=saved.damaged(tmp_path / "states", REFUSED[told]))
    assert told in str(caught.value)
    assert restored(trainer) == before
