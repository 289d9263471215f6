"""Loads the state of an optimizer, which may be sharded and on disk, without changing its precision."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeGuard, cast

from torch import Tensor
from torch.optim import Optimizer

from pa_checkpoint._errors import CheckpointError
from pa_checkpoint._incompatibility import has_own_form
from pa_checkpoint._sharded_tensor import StoredTensor
from pa_checkpoint._torch import is_sharded


def load_optimizer_state(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Load a state that ``state_dict`` of an optimizer has returned, in any form.

    Args:
        optimizer: The optimizer.
        state: The state. The optimizer uses its tensors without a copy; tensors on disk are read.

    Raises:
        CheckpointError: After loading, the optimizer lacks tensors of the state.
    """
    split = _split_like_parameters(state, optimizer)
    if has_own_form(optimizer):
        optimizer.load_state_dict(split)
        loaded = _shapes(optimizer.state_dict())
        lost = [name for name, shape in _shapes(split).items() if loaded.get(name) != shape]
        if lost:
            kind = type(optimizer).__name__
            raise CheckpointError(
                f"load_state_dict() of {kind} does not restore what its state_dict() returned.",
                given=f"after load_state_dict(), state_dict() lacks {lost[0]}",
                do=f"Correct load_state_dict() of {kind}, and resume again; if it has none, write it.",
            )
    else:
        pairs = zip(optimizer.param_groups, split["param_groups"], strict=True)
        # with the entries of schedulers in groups, such as initial_lr, that the saved groups lack
        groups = [{**saved, **_other_entries(own, {*saved, *optimizer.defaults})} for own, saved in pairs]
        optimizer.load_state_dict({**split, "param_groups": groups})
    by_parameter = split.get("state")
    if isinstance(by_parameter, Mapping):
        _keep_precision(optimizer, cast("Mapping[object, object]", by_parameter))


def _other_entries(group: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the entries of a group without some names."""
    return {name: value for name, value in group.items() if name not in names}


def _shapes(value: object, name: str = "state_dict()") -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors in a state by their paths."""
    if isinstance(value, Tensor):
        return {name: tuple(value.shape)}
    items: Iterable[tuple[object, object]] = ()
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
    elif isinstance(value, list | tuple):
        items = enumerate(cast("Sequence[object]", value))
    return {path: shape for key, item in items for path, shape in _shapes(item, f"{name}[{key!r}]").items()}


def _keep_precision(optimizer: Optimizer, saved: Mapping[object, object]) -> None:
    """Undo torch's cast, which converts the state to the precision of the parameter."""
    for number, parameter in enumerate(_parameters_of(optimizer)):
        state, of_parameter = optimizer.state.get(parameter), saved.get(number)
        if state is None or not isinstance(of_parameter, Mapping):
            continue
        for name, value in cast("Mapping[str, object]", of_parameter).items():
            loaded = state.get(name)
            if isinstance(value, Tensor) and isinstance(loaded, Tensor) and loaded.dtype != value.dtype:
                state[name] = value.to(loaded.device)


def _split_like_parameters(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """Return a state whose tensors are sharded like the parameters of the optimizer.

    The saved tensors may be whole or in different pieces. The state of a plain parameter is whole.
    """
    entries, numbers = state.get("state"), _numbers(state.get("param_groups"))
    parameters = _parameters_of(optimizer)
    if not isinstance(entries, Mapping) or len(numbers) != len(parameters):  # a form of its own
        is_split = any(map(is_sharded, parameters))
        own_form: dict[str, Any] = StoredTensor.resolve(dict(state), optimizer.state_dict() if is_split else None)
        return own_form
    by_number = dict(zip(numbers, parameters, strict=True))
    split = {
        number: _split_entries(by_number.get(number), of_parameter)
        for number, of_parameter in cast("Mapping[object, object]", entries).items()
    }
    return {**{name: StoredTensor.resolve(value) for name, value in state.items() if name != "state"}, "state": split}


def _parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters of an optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _numbers(groups: Any) -> list[object]:
    """Return the numbers of the parameters in a state, group by group."""
    try:
        return [number for group in groups for number in group["params"]]
    except (KeyError, TypeError):  # a form of its own
        return []


def _split_entries(parameter: Tensor | None, entries: object) -> Any:
    """Return the entries of a parameter, sharded like the parameter."""
    if parameter is None or not isinstance(entries, Mapping):
        return StoredTensor.resolve(entries)
    return {
        name: StoredTensor.of(value).like(parameter)
        if _is_split_with(value, parameter)
        else StoredTensor.resolve(value)
        for name, value in cast("Mapping[str, object]", entries).items()
    }


def _is_split_with(value: object, parameter: Tensor) -> TypeGuard[Tensor | StoredTensor]:
    """Return whether an optimizer shards a value like its parameter; a step count is not sharded."""
    if not is_sharded(parameter) or not isinstance(value, Tensor | StoredTensor):
        return False
    return value.shape == parameter.shape or (len(value.shape) > 1 and len(value.shape) == parameter.dim())
