"""States with right digests of another form: an older one is taken, or an error names what an object cannot take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from pa_core import CheckpointError
from pa_core.training_state.saved_runs import find_saved_run
from tests.support.pa_core.damage.damaged_states import change_document, fit_digests
from tests.support.pa_core.damage.saved_runs import EPOCHS, SavedRuns, make, restored, save_runs
from tests.support.pa_core.training_states.small_runs import train

MISSING = object()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> SavedRuns:
    """States of a run that was interrupted."""
    return save_runs(tmp_path_factory.mktemp("states"))


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
