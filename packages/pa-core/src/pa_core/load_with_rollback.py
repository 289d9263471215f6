"""Loading what was saved of several objects: all of it or, where one of them raises an error, nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer

from pa_core.errors import CheckpointError, StopTrainingError
from pa_core.incompatible_state import has_own_form
from pa_core.model_tensors import parameters_of


def does_not_fit(target: object, where: str, do: str, found: str) -> CheckpointError:
    """Return the error of an object that cannot load what was saved.

    Args:
        target: The object.
        where: Where it was saved, and what of it does not fit.
        do: What to do; empty for the usual advice.
        found: Why it does not.
    """
    kind = type(target).__name__
    return CheckpointError(
        f"The state does not fit this {kind}; nothing was loaded.",
        given=f"{where}: {found}",
        do=do or f"Make the {kind} as it was when the state was saved, or use another state.",
    )


@contextmanager
def refusals_explained(explain: Callable[[str], CheckpointError]) -> Generator[None]:
    """Explain an error that an object raises within the context when it loads its state.

    Args:
        explain: Returns the error that says so, from what the object has raised.

    Raises:
        CheckpointError: The object has raised another error.
    """
    try:
        yield
    except (CheckpointError, StopTrainingError):
        raise
    except Exception as error:
        raise explain(f"loading it raised {type(error).__name__}: {error}") from error


def load_or_undo(
    load: Callable[[Any], object],
    state: Any,
    before: Any,
    undo: ExitStack,
    explain: Callable[[str], CheckpointError],
) -> None:
    """Load the state of an object, and note how that is undone.

    Args:
        load: Loads a state.
        state: The state.
        before: The present state of the object. Its containers are copied, as they may belong to the object; tensors
            would take memory again.
        undo: What is called in the reverse order if an error is raised later.
        explain: As for ``refusals_explained``.

    Raises:
        CheckpointError: The object raises an error for the state.
    """
    undo.callback(_without_errors, partial(load, _kept(before)))
    with refusals_explained(explain):
        load(state)


def load_optimizer_or_undo(
    optimizer: Optimizer,
    state: dict[str, Any],
    undo: ExitStack,
    explain: Callable[[str], CheckpointError],
    added_groups: Iterable[Sequence[Tensor]] = (),
) -> None:
    """Load the state of an optimizer, and note how that is undone.

    Args:
        optimizer: The optimizer.
        state: Its state, whose tensors become its own.
        undo: As for ``load_or_undo``.
        explain: As for ``load_or_undo``.
        added_groups: The parameters of groups that the state has, and the optimizer does not have yet.

    Raises:
        CheckpointError: As for ``load_or_undo``, and ``load_state``.
    """
    groups, entries, number = optimizer.param_groups, optimizer.state, len(optimizer.param_groups)

    def bring_back() -> None:
        del groups[number:]
        optimizer.param_groups, optimizer.state = groups, entries  # loading has replaced them, and changed none

    if has_own_form(optimizer):  # which may have changed them
        undo.callback(_without_errors, partial(optimizer.load_state_dict, copy.deepcopy(optimizer.state_dict())))
    undo.callback(bring_back)
    with refusals_explained(explain):
        for parameters in added_groups:
            optimizer.add_param_group({"params": parameters})
        load_state(optimizer, state)


def load_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load what an optimizer's ``state_dict`` returned, which may have its own form.

    Args:
        optimizer: The optimizer.
        state: The state, with its tensors on the CPU.

    Raises:
        CheckpointError: Afterwards the optimizer lacks tensors of the state.
    """
    optimizer.load_state_dict(state)
    if has_own_form(optimizer):
        loaded = _shapes(optimizer.state_dict())
        lost = [name for name, shape in _shapes(state).items() if loaded.get(name) != shape]
        if lost:
            kind = type(optimizer).__name__
            raise CheckpointError(
                f"load_state_dict() of {kind} does not restore what its state_dict() returned.",
                given=f"after load_state_dict(), state_dict() lacks {lost[0]}",
                do=f"Correct load_state_dict() of {kind}, and resume again; if it has none, write it.",
            )
    by_parameter = state.get("state")
    if isinstance(by_parameter, Mapping):
        _keep_precision(optimizer, cast("Mapping[object, object]", by_parameter))


def _shapes(value: object, name: str = "state_dict()") -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors in a state by what leads to them."""
    if isinstance(value, Tensor):
        return {name: tuple(value.shape)}
    items: Iterable[tuple[object, object]] = ()
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
    elif isinstance(value, list | tuple):
        items = enumerate(cast("Sequence[object]", value))
    return {one: shape for key, item in items for one, shape in _shapes(item, f"{name}[{key!r}]").items()}


def _keep_precision(optimizer: Optimizer, saved: Mapping[object, object]) -> None:
    """Torch casts state to the precision of the parameter; an optimizer may keep its state in a higher one."""
    for number, parameter in enumerate(parameters_of(optimizer)):
        state, of_parameter = optimizer.state.get(parameter), saved.get(number)
        if state is None or not isinstance(of_parameter, Mapping):
            continue
        for name, value in cast("Mapping[str, object]", of_parameter).items():
            loaded = state.get(name)
            if isinstance(value, Tensor) and isinstance(loaded, Tensor) and loaded.dtype != value.dtype:
                state[name] = value.to(loaded.device)


def _without_errors(load: Callable[[], object]) -> None:
    with suppress(Exception):  # an object that refuses its own state has told enough
        load()


def _kept(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _kept(item) for key, item in cast("dict[object, Any]", value).items()}
    return [*map(_kept, cast("list[object]", value))] if isinstance(value, list) else value
