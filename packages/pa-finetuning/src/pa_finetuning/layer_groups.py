"""The layer groups of a model: their modules, their indexes and their parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from operator import index as as_integer
from typing import NamedTuple, cast

from torch import nn

_NUM_NAMES_SHOWN = 5


class LayerGroup(NamedTuple):
    """A layer group of a model, as ``ModelFreezer.get_layer_groups`` returns it.

    Use it to see which index belongs to which module. A layer group is a part of the model that is frozen as a whole
    and has a single learning rate. ``LayerGroup`` is a named tuple, and you create one yourself only if you override
    ``get_layer_groups``.

    Attributes:
        layer_group_idx: The index of the group, counted from the start and from the end, for example ``(0, -2)``. All
            methods of ``ModelFreezer`` accept either number.
        module: The module of the group; if the group has several modules, a container that holds them.
        is_frozen: Whether the group has frozen parameters, and no trainable parameters except in batch norm layers that
            keep learning.

    Example:
        >>> import torch
        >>> from pa_finetuning import ModelFreezer
        >>> freezer = ModelFreezer(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)))
        >>> freezer.freeze()
        >>> [(group.layer_group_idx, group.is_frozen) for group in freezer.get_layer_groups()]
        [((0, -2), True), ((1, -1), False)]
    """

    layer_group_idx: tuple[int, int]
    module: nn.Module
    is_frozen: bool


class Layer(NamedTuple):
    """A module without modules inside it, as ``ModelFreezer.get_layers`` returns it.

    Use it to see which layers are frozen. ``Layer`` is a named tuple, and you need not create one yourself.

    Attributes:
        layer_group_idx: The index of its layer group, counted from the start and from the end, for example ``(0, -2)``;
            None for a layer without parameters that is in no group.
        module: The layer.
        is_frozen: Whether the layer has frozen parameters and no trainable parameters; False for a layer without
            parameters.

    Example:
        >>> import torch
        >>> from pa_finetuning import ModelFreezer
        >>> block = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
        >>> freezer = ModelFreezer(torch.nn.Sequential(block, torch.nn.Linear(3, 2)))
        >>> [(type(layer.module).__name__, layer.layer_group_idx) for layer in freezer.get_layers()]
        [('Linear', (0, -2)), ('ReLU', (0, -2)), ('Linear', (1, -1))]
    """

    layer_group_idx: tuple[int, int] | None
    module: nn.Module
    is_frozen: bool


class LayerGroups:
    """The layer groups of a model by their index, with the parameters of each.

    Parameters of the model itself that are in no group belong to the first group.

    Args:
        model: The model that is divided into groups.
        groups: The module, or the record, of each group. A container that is not in the model represents the parts of
            the model that it holds.

    Attributes:
        model_name: The name of the model's class.
        modules: The module of each group.
        parameters: The parameters of each group, each of them once; a parameter that several groups share is in each of
            these groups.

    Raises:
        ValueError: There is no group, a group is not part of the model, two groups overlap, or parameters are in no
            group.
        TypeError: A group is neither a record nor a module.
    """

    def __init__(self, model: nn.Module, groups: Sequence[LayerGroup | nn.Module]) -> None:
        self.model_name: str = type(model).__name__
        self.modules: list[nn.Module] = [_module_of(group, index) for index, group in enumerate(groups)]
        if not self.modules:
            raise ValueError(
                f"Given: no layer group for {self.model_name}. Expected: at least a group. Leave layer_groups out, or "
                "return super().get_layer_groups(), for a group for each direct child of the model."
            )
        _require_disjoint([_names_within(model, module, index) for index, module in enumerate(self.modules)])
        self.parameters: list[list[nn.Parameter]] = [list(module.parameters()) for module in self.modules]
        in_groups = {parameter for group in self.parameters for parameter in group}
        on_the_model = [parameter for parameter in model.parameters(recurse=False) if parameter not in in_groups]
        self.parameters[0] = [*on_the_model, *self.parameters[0]]
        _require_all(model, in_groups.union(on_the_model))

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self.modules)

    def index_by_module(self) -> dict[nn.Module, int]:
        """Return, for each module within the groups, the index of the first group that has it."""
        from_the_end = reversed(list(enumerate(self.modules)))
        return {module: index for index, group in from_the_end for module in group.modules()}

    def as_pair(self, index: int) -> tuple[int, int]:
        """Return an index, counted from the start and from the end."""
        return index, index - len(self)

    def resolve_index(self, index: int) -> int:
        """Return the index of a layer group, counted from the start.

        Raises:
            TypeError: The index is not an integer.
            IndexError: There is no such layer group.
        """
        if isinstance(index, bool) or not hasattr(index, "__index__"):
            raise TypeError(
                f"Given as the index of a layer group: {index!r}, of type {type(index).__name__}. Expected: an "
                "integer. Pass a position in get_layer_groups(); negative positions count from the end."
            )
        num_groups = len(self)
        if not -num_groups <= index < num_groups:
            whole = ", and 0, 0 for the whole of this model" if num_groups == 1 else ""
            raise IndexError(
                f"There is no layer group {index}: {self.model_name} has {num_groups}. Expected: an index from "
                f"{-num_groups} to {num_groups - 1}. Pass a position in get_layer_groups(){whole}."
            )
        return as_integer(index) % num_groups

    def indexes_between(self, start: int, end: int) -> range:
        """Return the indexes from one layer group to another, both included; either may come first.

        Raises:
            TypeError: An index is not an integer.
            IndexError: An index is not the index of a layer group.
        """
        first, last = sorted((self.resolve_index(start), self.resolve_index(end)))
        return range(first, last + 1)


def owned_parameters(groups: Iterable[list[nn.Parameter]]) -> list[list[nn.Parameter]]:
    """Return the groups with each parameter once: in the first group that has it."""
    seen = set[nn.Parameter]()
    owned: list[list[nn.Parameter]] = []
    for parameters in groups:
        owned.append([parameter for parameter in parameters if parameter not in seen])
        seen.update(parameters)
    return owned


def _module_of(group: object, index: int) -> nn.Module:
    module = group if isinstance(group, nn.Module) else getattr(group, "module", None)
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"Given as layer group {index}: {group!r}, of type {type(group).__name__}. Expected: a LayerGroup or a "
            "module. Return records or modules from get_layer_groups()."
        )
    return module


def _names_within(model: nn.Module, module: nn.Module, group: int) -> list[str]:
    """Return the names of a module in the model, or of its modules if it is a container outside of the model."""
    names_in_model = {other: name for name, other in cast("Iterable[tuple[str, nn.Module]]", model.named_modules())}
    if module in names_in_model:
        return [names_in_model[module]]
    names: list[str] = []
    for parameter in module.parameters(recurse=False):
        names += [name for name, other in model.named_parameters() if other is parameter]
    for child in module.children():
        names += _names_within(model, child, group)
    if not names and any(True for _ in module.parameters()):
        raise ValueError(
            f"Given as layer group {group}: {type(module).__name__}, which is not part of {type(model).__name__}. "
            "Expected: modules of the model that the freezer was given. Pass their names, as in model.named_modules()."
        )
    return names


def _require_disjoint(names_of_groups: list[list[str]]) -> None:
    places = [(name, group) for group, names in enumerate(names_of_groups) for name in names]
    for (path, group), (other, other_group) in combinations(places, 2):
        if path == other or path.startswith(f"{other}.") or other.startswith(f"{path}.") or not path or not other:
            raise ValueError(
                f"Given: layer groups that overlap, {path!r} in group {group} and {other!r} in group {other_group}. "
                "Expected: each part of the model in one group. Remove one of the two, or replace the larger group by "
                "its parts."
            )


def _require_all(model: nn.Module, in_groups: set[nn.Parameter]) -> None:
    lacking = [name for name, parameter in model.named_parameters() if parameter not in in_groups]
    if lacking:
        shown = ", ".join(lacking[:_NUM_NAMES_SHOWN])
        others = f" and {len(lacking) - _NUM_NAMES_SHOWN} more" if len(lacking) > _NUM_NAMES_SHOWN else ""
        raise ValueError(
            f"Given: layer groups of {type(model).__name__} without {shown}{others}. Expected: each parameter in a "
            "group, or it could be neither frozen nor given a learning rate. Add it, or the module around it, to the "
            "group that it should be trained with."
        )
