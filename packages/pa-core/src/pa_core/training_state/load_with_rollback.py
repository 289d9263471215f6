"""Objects load the states that a saved run has of them: all of them or, if one raises an error, none."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from torch import nn

from pa_checkpoint import StoredTensor
from pa_core.errors import CheckpointError, ExplainedError, StopTrainingError
from pa_core.model_tensors import differences_of_weights, list_differences
from pa_core.types import SupportsStateDict


@contextmanager
def refusals_explained(what: str, path: Path | None = None) -> Generator[None]:
    """Explain an error that an object raises within the context when it loads its state.

    Args:
        what: What the object is, and its class.
        path: The training state, where it is known.

    Raises:
        CheckpointError: The object has raised an error that does not explain itself.
    """
    try:
        yield
    except (ExplainedError, CheckpointError, StopTrainingError):
        raise
    except Exception as error:
        state = f"{path or 'a training state'}, with a state of {what}"
        raise CheckpointError(
            "An object does not load what the training state has of it.",
            given=f"{state}: loading it raised {type(error).__name__}: {error}",
            do="Use another state, or look at load_state_dict() of the object.",
        ) from error


@contextmanager
def taken_over(target: SupportsStateDict, state: Any, what: str, path: Path) -> Generator[None]:
    """Load the state of an object; an exception within the context undoes that.

    Args:
        target: The object.
        state: What its ``state_dict`` returned when it was saved. Its tensors are split like the object's.
        what: What the object is.
        path: The training state.

    Raises:
        CheckpointError: The object raises an error for the state.
    """
    named = f"{what}, {type(target).__name__}"
    own = target.state_dict()
    state = StoredTensor.resolve(state, own)
    if isinstance(target, nn.Module):
        _require_fitting_weights(target, state, named, path)
    before = _kept(own)
    try:
        with refusals_explained(named, path):
            target.load_state_dict(state)
        yield
    except BaseException:
        with suppress(Exception):  # an object that refuses its own state has told enough
            target.load_state_dict(before)
        raise


def _require_fitting_weights(module: nn.Module, state: Any, what: str, path: Path) -> None:
    """A module would load what fits before it raises an error of what does not."""
    differences = differences_of_weights(module, _as_mapping(state), "state")
    if differences:
        raise CheckpointError(
            "An object is another one than the one that was saved; nothing was loaded.",
            given=f"{path}, with a state of {what}: {list_differences(differences.values())}",
            do="Make the object as it was when the state was saved.",
        )


def _as_mapping(state: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", state) if isinstance(state, Mapping) else {}


def _kept(value: Any) -> Any:
    """A state whose containers are copied, as they may belong to the object; tensors would take memory again."""
    if isinstance(value, dict):
        return {key: _kept(item) for key, item in cast("dict[object, Any]", value).items()}
    if isinstance(value, list):
        return [_kept(item) for item in cast("list[object]", value)]
    return value
