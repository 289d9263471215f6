"""Finds the modules of layer groups that a script gives by names, modules and parameters."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TypeAlias, cast

from torch import nn

LayerGroupLike: TypeAlias = str | nn.Module | nn.Parameter | Sequence[str | nn.Module | nn.Parameter]
"""The type of an entry in the ``layer_groups`` argument of ``ModelFreezer``.

It is a module or a parameter of the model, or its dotted name as in ``model.named_modules()``, for example
``"encoder.layer.0"``; or a list of several of these, which together make a layer group.
"""


def modules_of_groups(model: nn.Module, layer_groups: Sequence[LayerGroupLike]) -> list[nn.Module]:
    """Return the module of each group: the given module, or a container that holds the several parts.

    Raises:
        ValueError: A name is not in the model, or a group is empty.
        TypeError: An entry is neither a name nor a part of a model.
    """
    given = cast("object", layer_groups)
    if isinstance(given, str | nn.Module) or not isinstance(given, Sequence):
        example = f"[{given!r}]" if isinstance(given, str) else "['encoder', 'head']"
        raise TypeError(
            f"Given: layer_groups={given!r}, of type {type(given).__name__}. Expected: a list with an "
            f"entry for each group. Pass a list such as {example}."
        )
    return [_module_of_group(model, group, f"layer_groups[{index}]") for index, group in enumerate(layer_groups)]


def _module_of_group(model: nn.Module, group: object, place: str) -> nn.Module:
    if isinstance(group, str | nn.Module | nn.Parameter):
        return _module_of_part(model, group, place)
    if not isinstance(group, Sequence):
        raise TypeError(
            f"Given as {place}: {group!r}, of type {type(group).__name__}. Expected: a name, a module, a parameter, or "
            "a list of them. Pass a name such as those in model.named_modules()."
        )
    if not group:
        raise ValueError(f"Given: {place}, which is empty. Expected: the parts of the group. Add parts, or remove it.")
    parts = cast("Sequence[object]", group)
    return nn.ModuleList(_module_of_part(model, part, f"{place}[{number}]") for number, part in enumerate(parts))


def _module_of_part(model: nn.Module, part: object, place: str) -> nn.Module:
    if isinstance(part, str):
        part = _named(model, part, place)
    if isinstance(part, nn.Parameter):
        return nn.ParameterList([part])
    if isinstance(part, nn.Module):
        return part
    raise TypeError(
        f"Given as {place}: {part!r}, of type {type(part).__name__}. Expected: a name, a module or a parameter. Pass "
        "a name such as those in model.named_modules()."
    )


def _named(model: nn.Module, name: str, place: str) -> nn.Module | nn.Parameter:
    modules: dict[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))  # pyright: ignore[reportUnknownArgumentType]  # torch leaves it untyped
    parameters = dict(model.named_parameters())
    if name in modules:
        return modules[name]
    if name in parameters:
        return parameters[name]
    names = [*modules, *parameters]
    below = [other for other in names if other.endswith(f".{name}")]
    close = below[:1] or get_close_matches(name, names, n=1) or [next(iter(dict(model.named_children())), "")]
    raise ValueError(
        f"Given as {place}: {name!r}, which is not a module or parameter of {type(model).__name__}. Expected: a name "
        f"as in model.named_modules(). Pass a name such as {close[0]!r}."
    )
