"""The layer groups of a model: which there are, how they are counted, and which parameters are theirs."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index as as_integer

from torch import nn

__all__ = ["indexes_between", "layer_groups", "owned_parameters", "parameters_of_groups", "resolve_index"]


def layer_groups(model: nn.Module) -> list[nn.Module]:
    """Return the direct children of a model, in order; a model without any is its own only group."""
    return list(model.children()) or [model]


def resolve_index(model: nn.Module, index: int) -> int:
    """Return the index of a layer group, counted from the start.

    Raises:
        TypeError: The index is no integer.
        IndexError: There is no such layer group.
    """
    if isinstance(index, bool) or not hasattr(index, "__index__"):
        raise TypeError(
            f"Given as the index of a layer group: {index!r}, of type {type(index).__name__}. Expected: an integer. "
            "Pass a position in get_layer_groups(); negative ones count from the end."
        )
    num_groups = len(layer_groups(model))
    if not -num_groups <= index < num_groups:
        whole = ", and 0, 0 for the whole of this model" if num_groups == 1 else ""
        raise IndexError(
            f"There is no layer group {index}: {type(model).__name__} has {num_groups}. Expected: an index from "
            f"{-num_groups} to {num_groups - 1}. Pass a position in get_layer_groups(){whole}."
        )
    return as_integer(index) % num_groups


def indexes_between(model: nn.Module, one: int, other: int) -> range:
    """Return the indexes from one layer group to another, both included, whichever comes first.

    Raises:
        TypeError: One of them is no integer.
        IndexError: One of them is no layer group.
    """
    first, last = sorted((resolve_index(model, one), resolve_index(model, other)))
    return range(first, last + 1)


def parameters_of_groups(model: nn.Module) -> list[list[nn.Parameter]]:
    """Return the parameters of each layer group, those on the model itself with the first one.

    A parameter that several groups share is in each of them, once.
    """
    of_groups = [list(group.parameters()) for group in layer_groups(model)]
    of_groups[0] = list(dict.fromkeys([*model.parameters(recurse=False), *of_groups[0]]))
    return of_groups


def owned_parameters(groups: Iterable[list[nn.Parameter]]) -> list[list[nn.Parameter]]:
    """Return the groups with each parameter once: in the first group that has it."""
    seen = set[nn.Parameter]()
    owned: list[list[nn.Parameter]] = []
    for parameters in groups:
        owned.append([parameter for parameter in parameters if parameter not in seen])
        seen.update(parameters)
    return owned
