"""The saved state of an optimizer, split as its parameters are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard, cast

from torch import Tensor
from torch.optim import Optimizer

from pa_checkpoint import StoredTensor
from pa_core.model_tensors import is_sharded, parameters_of

__all__ = ["split_like_parameters"]


def split_like_parameters(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """Return the state of an optimizer with those tensors split that it keeps for parameters which are split.

    They may have been saved in other pieces, or whole. What belongs to a plain parameter is whole.

    Args:
        state: What the ``state_dict`` of an optimizer of the same parameters returned, perhaps with stored tensors.
        optimizer: The optimizer that takes it over.
    """
    entries, numbers = state.get("state"), _numbers(state.get("param_groups"))
    parameters = list(parameters_of(optimizer))
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


def _numbers(groups: object) -> list[object]:
    """The numbers by which a state calls the parameters, group by group."""
    if not isinstance(groups, list):
        return []
    found: list[object] = []
    for group in cast("list[object]", groups):
        numbers = cast("Mapping[str, object]", group).get("params") if isinstance(group, Mapping) else None
        found += cast("list[object]", numbers) if isinstance(numbers, list) else []
    return found


def _split_entries(parameter: Tensor | None, entries: object) -> Any:
    if parameter is None or not isinstance(entries, Mapping):
        return StoredTensor.resolve(entries)
    return {
        name: StoredTensor.of(value).like(parameter)
        if _is_split_with(value, parameter)
        else StoredTensor.resolve(value)
        for name, value in cast("Mapping[str, object]", entries).items()
    }


def _is_split_with(value: object, parameter: Tensor) -> TypeGuard[Tensor | StoredTensor]:
    """Whether an optimizer keeps a value in pieces, as it does the parameter. A number of steps is whole."""
    if not is_sharded(parameter) or not isinstance(value, Tensor | StoredTensor):
        return False
    return value.shape == parameter.shape or (len(value.shape) > 1 and len(value.shape) == parameter.dim())
