"""States with right digests in which something cannot be: an older one is taken, or an error names what it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pa_core import CheckpointError
from pa_core.training_state import find_saved_run
from tests.pa_core.damage.damaged_states import change_document, fit_digests
from tests.pa_core.damage.test_damaged_states import EPOCHS, SavedRuns, make, restored, saved
from tests.pa_core.training_states.small_runs import train

__all__ = ["saved"]  # the fixture

MISSING = object()
WHOLE_NUMBER = "instead of a whole number"


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
    "run.position.updates is 'ten' " + WHOLE_NUMBER: ("run/position/updates", "ten"),
    "run.position.updates is 1e+30 " + WHOLE_NUMBER: ("run/position/updates", 1e30),
    "run.position.updates is 0.5 " + WHOLE_NUMBER: ("run/position/updates", 0.5),
    "run.position.updates is True " + WHOLE_NUMBER: ("run/position/updates", True),
    "run.position.steps is -1 " + WHOLE_NUMBER: ("run/position/steps", -1),
    "run.position.phase is 'other' instead of one of epoch, step": ("run/position/phase", "other"),
    "run.position.samples is missing": ("run/position/samples", MISSING),
    "updates=9, samples=24, steps=3, eval_sets=()) instead of update 10": ("run/position/updates", 9),
    "instead of update 10, complete: False, as the manifest says": ("run/position/phase", "nothing"),
    "run.seed is None " + WHOLE_NUMBER: ("run/seed", None),
    "run.algorithm is 3 instead of a text or None": ("run/algorithm", 3),
    "'other'": ("run/algorithm", "other"),
    "run.settings.num_epochs is missing": ("run/settings/num_epochs", MISSING),
    "run.settings.samples_per_update is []": ("run/settings/samples_per_update", []),
    "run.settings.length of the schedule is 'ten'": ("run/settings/length of the schedule", "ten"),
    "ranks has 1 entries instead of 2, as run.settings says": ("run/settings/num_processes", 2),
    "run.hyperparameters.0 is None instead of a dictionary": ("run/hyperparameters", [None]),
    "run.hyperparameters.optimizer.0.lr is 'high' instead of a number": ("run/hyperparameters/0/lr", "high"),
    "run.nominal_items is 'ten' instead of a number or a dictionary or None": ("run/nominal_items", "ten"),
    "run.extension is 3 instead of a dictionary or None": ("run/extension", 3),
    "schedulers is empty instead of the state of CosineAnnealingLR": ("schedulers", {}),
    "schedulers.scheduler is None instead of a dictionary": ("schedulers/scheduler", None),
    "extras is 3 instead of a dictionary": ("extras", 3),
    "callbacks is None instead of a dictionary": ("callbacks", None),
    "history is [] instead of a dictionary": ("history", []),
    "objects.0.class is missing": ("objects/0/class", MISSING),
    "models.model.trainable.layers.0.bias is None instead of True or False": (
        "models/model/trainable/layers.0.bias",
        None,
    ),
    "other_buffers.seen is 3 instead of a Tensor or a StoredTensor": (
        "models/model/other_buffers/seen",
        3,
    ),
    "optimizers.optimizer.parameters.0 is 'x' instead of a list": ("optimizers/optimizer/parameters", ["x"]),
    "ranks.0.streams is not the state of all generators: TypeError": ("ranks/0/streams/python", 1),
    "ranks.0.streams is not the state of all generators: KeyError: 'torch'": ("ranks/0/streams/torch", MISSING),
    "all generators: TypeError: state must be a dict or a tuple": (
        "ranks/0/streams/numpy",
        "other",
    ),
    "ranks.0.loaders is None instead of a dictionary": ("ranks/0/loaders", None),
    "ranks.0.loaders.training.has_workers is 'no' instead of True or False": (
        "ranks/0/loaders/training",
        {"generators": {}, "has_workers": "no"},
    ),
    "ranks.0.step_means.loss is [1] instead of 2 values": ("ranks/0/step_means", {"loss": [1]}),
}
"""By what is told of it, an entry of the document and what stands in its place."""

TENSORS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "ranks.0.losses is tensor([]": ("ranks/0/losses", lambda one: one[:0].clone()),
    "ranks.0.losses is tensor([1, 2])": ("ranks/0/losses", lambda _: torch.tensor([1, 2])),
    "ranks.0.losses is tensor([ 1., -1.])": ("ranks/0/losses", lambda _: torch.tensor([1.0, -1.0])),
    "ranks.0.streams is not": ("ranks/0/streams/torch", lambda one: one[:-1].clone()),
}

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
    "Meter: loading it raised KeyError": with_entry("objects/0/state", {}),
}


@pytest.mark.parametrize("told", [*PASSED_OVER, *TENSORS])
def test_a_state_of_another_form_or_that_contradicts_itself_is_passed_over(
    told: str, saved: SavedRuns, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """Where the older one is resumed, a warning tells of the newer one."""
    change = with_entry(*PASSED_OVER[told]) if told in PASSED_OVER else with_tensor(*TENSORS[told])
    found = find_saved_run(saved.damaged(tmp_path / "states", change))
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
