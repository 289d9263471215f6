"""Why a saved state would not fit the optimizer or the scheduler that is to take it over, found before it is loaded.

Optimizers and schedulers of torch accept nearly everything that they are given, and fail in the next step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pa_core._torch import NESTED_SCHEDULERS
from pa_core.state_dicts import supports_state_dict

__all__ = ["has_own_form", "misfit_of_optimizer", "misfit_of_scheduler", "without_foreign_entries"]


def has_own_form(optimizer: Optimizer) -> bool:
    """Whether the state of an optimizer has its own form, which only its ``load_state_dict`` knows."""
    kind = type(optimizer)
    hooks = [value for name, value in vars(optimizer).items() if "state_dict" in name and "hooks" in name]
    is_of_torch = kind.state_dict is Optimizer.state_dict and kind.load_state_dict is Optimizer.load_state_dict
    return not is_of_torch or any(hooks)


def misfit_of_optimizer(
    optimizer: Optimizer, state: Mapping[str, Any], groups: Sequence[Sequence[Tensor]] | None = None
) -> str | None:
    """Return why a state does not fit an optimizer; None where it fits, and where nobody can tell.

    The entries of each parameter are compared with those that a first step makes, for the optimizers of torch.

    Args:
        optimizer: The optimizer.
        state: What the ``state_dict`` of another one returned.
        groups: The parameters of each group, where the state has groups that the optimizer does not have yet.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))])
        >>> wrong = {"step": torch.ones(()), "exp_avg": torch.zeros(3), "exp_avg_sq": torch.zeros(2)}
        >>> misfit_of_optimizer(optimizer, {**optimizer.state_dict(), "state": {0: wrong}})
        'state.0.exp_avg is a tensor of shape (3,), not (2,)'
    """
    if has_own_form(optimizer):
        return None
    saved_groups, by_number = _groups_of(state), state.get("state")
    if saved_groups is None or not isinstance(by_number, Mapping):
        return "it is not what an optimizer's state_dict() returns"
    own_groups: list[dict[str, Any]] = list(optimizer.param_groups)
    parameters: Sequence[Sequence[Tensor]] = [group["params"] for group in own_groups] if groups is None else groups
    if len(saved_groups) != len(parameters):
        return f"it has {len(saved_groups)} groups, not {len(parameters)}"
    own_groups += [optimizer.defaults] * (len(parameters) - len(own_groups))
    by_parameter: dict[object, tuple[Tensor, Mapping[str, Any]]] = {}
    for index, (saved, own, of_group) in enumerate(zip(saved_groups, own_groups, parameters, strict=True)):
        misfit = _misfit_of_group(optimizer, saved, own, len(of_group))
        if misfit is not None:
            return f"param_groups.{index}.{misfit}"
        by_parameter |= {number: (one, saved) for number, one in zip(saved["params"], of_group, strict=True)}
    if len(by_parameter) != sum(map(len, parameters)):
        return "param_groups list a parameter twice"
    return _misfit_of_entries(type(optimizer), by_parameter, cast("Mapping[object, object]", by_number))


def _groups_of(state: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    groups = state.get("param_groups")
    if not isinstance(groups, list) or not all(isinstance(one, Mapping) for one in cast("list[object]", groups)):
        return None
    return cast("list[Mapping[str, Any]]", groups)


def _misfit_of_group(
    optimizer: Optimizer, saved: Mapping[str, Any], own: Mapping[str, Any], num_parameters: int
) -> str | None:
    numbers = saved.get("params")
    if not isinstance(numbers, list) or not all(type(one) is int for one in cast("list[object]", numbers)):
        return "params is not a list of whole numbers"
    if len(cast("list[int]", numbers)) != num_parameters:
        return f"params has {len(cast('list[int]', numbers))} entries, not {num_parameters}"
    # Flags have come with releases of torch, which adds those that are missing.
    settings = [name for name, value in optimizer.defaults.items() if _kind(value) in ("a number", "a list")]
    if missing := [name for name in settings if name not in saved]:
        return f"{missing[0]} is missing"
    compared = sorted((saved.keys() & own.keys()) - {"params", "param_names"})
    is_strict = _is_of_torch(type(optimizer))
    for name in compared:
        found = _misfit(own[name], saved[name], is_strict=is_strict)
        if is_strict and own[name] is None and not isinstance(saved[name], bool | None):
            found = f" is {_shown(saved[name])}, not a flag"
        if found:
            return name + found
    return None


def _misfit_of_entries(
    kind: type[Optimizer],
    by_parameter: Mapping[object, tuple[Tensor, Mapping[str, Any]]],
    by_number: Mapping[object, object],
) -> str | None:
    made: dict[tuple[int, torch.dtype, int], dict[str, Any]] = {}
    for number, entries in by_number.items():
        if isinstance(number, str):  # what some optimizers keep for all parameters
            continue
        if number not in by_parameter or not isinstance(entries, Mapping):
            return f"state.{number} does not belong to a parameter"
        parameter, group = by_parameter[number]
        key = parameter.dim(), parameter.dtype, id(group)
        if key not in made:
            made[key] = _entries_of_first_step(kind, group, parameter)
        misfit = _misfit_of_parameter(kind, made[key], cast("Mapping[str, Any]", entries), parameter)
        if misfit is not None:
            return f"state.{number}.{misfit}"
    return None


def _misfit_of_parameter(
    kind: type[Optimizer], made: Mapping[str, Any], entries: Mapping[str, Any], parameter: Tensor
) -> str | None:
    for name, example in made.items():
        if issubclass(kind, SGD) and entries.get(name) is None:  # which makes its momentum when it is missing
            continue
        if name in entries:
            found = _misfit_of_entry(example, entries[name], parameter)
            if found:
                return name + found
        elif entries:
            return f"{name} is missing"
    return None


def _misfit_of_entry(example: object, entry: object, parameter: Tensor) -> str:
    if not isinstance(example, Tensor) or not isinstance(entry, Tensor):
        return _misfit(example, entry, is_strict=True)
    if not _is_plain(entry):
        return " is a tensor that is sparse, quantized or without values"
    if _number_kind(example) != _number_kind(entry):
        return f" is a tensor of {entry.dtype}, not {example.dtype}"
    is_alike = example.shape == _sizes_of_example(parameter)
    expected = parameter.shape if is_alike else example.shape
    if (is_alike or example.numel() == 1) and entry.shape != expected:
        return f" is a tensor of shape {tuple(entry.shape)}, not {tuple(expected)}"
    return "" if entry.dim() == example.dim() else f" is a tensor with {entry.dim()} dimensions, not {example.dim()}"


def _entries_of_first_step(kind: type[Optimizer], group: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    """What an optimizer of torch gathers of a small parameter with as many dimensions; nothing where none can tell."""
    if not _is_of_torch(kind):
        return {}
    example = nn.Parameter(torch.zeros(_sizes_of_example(parameter), dtype=parameter.dtype))
    example.grad = torch.zeros_like(example)
    options = {name: value for name, value in group.items() if name not in ("params", "param_names")}
    options |= {name: None for name in ("foreach", "fused") if name in options}
    options |= {name: False for name in ("capturable", "differentiable") if name in options}
    step: Any = getattr(kind.step, "__wrapped__", kind.step)  # without the hooks that torch calls for all optimizers
    try:
        optimizer = kind([{"params": [example], **options}])  # type: ignore[call-arg]  # optimizers of torch take groups alone  # pyright: ignore[reportCallIssue]
        step(optimizer)
    except Exception:  # one that needs a closure, or another kind of parameter
        return {}
    return dict(optimizer.state[example])


def _sizes_of_example(parameter: Tensor) -> torch.Size:
    return torch.Size(range(2, 2 + parameter.dim()))


def misfit_of_scheduler(scheduler: object, state: object) -> str | None:
    """Return why a state does not fit a scheduler; None where it fits, and where nobody can tell.

    Most schedulers set anything that they are given as their attributes, methods and the optimizer included.

    Args:
        scheduler: The scheduler.
        state: What the ``state_dict`` of another one returned.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        >>> misfit_of_scheduler(scheduler, {**scheduler.state_dict(), "step": 1})
        'step is not a part of the state of a StepLR'
        >>> misfit_of_scheduler(scheduler, {**scheduler.state_dict(), "last_epoch": "ten"})
        "last_epoch is 'ten', not a number"
    """
    if not isinstance(state, Mapping):
        return "it is not what a scheduler's state_dict() returns"
    saved, own = cast("Mapping[str, Any]", state), _state_of(scheduler)
    kind = type(scheduler)
    for name, value in saved.items():
        if name not in own and _has_meaning(scheduler, name):
            return f"{name} is not a part of the state of a {kind.__name__}"
        if name == NESTED_SCHEDULERS:
            found = _misfit_of_nested(getattr(scheduler, name, ()), value)
        else:
            found = _misfit(own[name], value, is_strict=_is_of_torch(kind)) if name in own else ""
        if found:
            return f"{name}{found}"
    missing = [name for name in ("last_epoch", "base_lrs") if name in own and name not in saved]
    return f"{missing[0]} is missing" if missing and isinstance(scheduler, LRScheduler) else None


def _state_of(scheduler: object) -> Mapping[str, Any]:
    """The state of a scheduler, empty where it has not the form of a dictionary."""
    state: object = scheduler.state_dict() if supports_state_dict(scheduler) else None
    return cast("Mapping[str, Any]", state) if isinstance(state, Mapping) else {}


def _has_meaning(scheduler: object, name: object) -> bool:
    """Whether a name belongs to a method, or to an attribute that a scheduler keeps out of its state."""
    if not isinstance(name, str):
        return False
    of_class = getattr(type(scheduler), name, None)
    return name in getattr(scheduler, "__dict__", ()) or callable(of_class) or isinstance(of_class, property)


def without_foreign_entries(scheduler: object, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a scheduler of torch has of a state, and the whole state for others.

    Other releases of torch have other entries. A custom scheduler may make further ones when it steps.

    Args:
        scheduler: The scheduler.
        state: One that fits it.
    """
    if not isinstance(scheduler, LRScheduler) or not _is_of_torch(type(scheduler)):
        return dict(state)
    taken = {name: state[name] for name in scheduler.state_dict() if name in state}
    if NESTED_SCHEDULERS in taken:
        nested: Sequence[object] = getattr(scheduler, NESTED_SCHEDULERS, ())
        pairs = zip(nested, taken[NESTED_SCHEDULERS], strict=True)
        taken[NESTED_SCHEDULERS] = [without_foreign_entries(*one) for one in pairs]
    return taken


def _is_of_torch(kind: type) -> bool:
    return kind.__module__.startswith("torch.optim.")


def _misfit_of_nested(schedulers: Sequence[object], states: object) -> str:
    if not isinstance(states, list) or len(cast("list[object]", states)) != len(schedulers):
        return f" is not a list of {len(schedulers)} states"
    for index, (one, state) in enumerate(zip(schedulers, cast("list[object]", states), strict=True)):
        found = misfit_of_scheduler(one, state)
        if found:
            return f".{index}.{found}"
    return ""


def _misfit(own: object, saved: object, *, is_strict: bool = False) -> str:
    """What is wrong with a saved value, if the object has one too; empty where it is of the same kind.

    Unless it is strict, a value may be None, and a list or a dictionary of another length.
    """
    kind, found = _kind(own), _kind(saved)
    may_differ = not kind or kind == found or (saved is None and isinstance(own, bool))
    if not may_differ and (saved is not None or is_strict):
        return f" is {_shown(saved)}, not {kind}"
    if kind == "a list" and own and found:
        return _misfit_of_items(cast("Sequence[object]", own), cast("Sequence[object]", saved), is_strict=is_strict)
    if isinstance(own, Mapping) and isinstance(saved, Mapping):
        mappings = cast("Mapping[Any, object]", own), cast("Mapping[Any, object]", saved)
        return _misfit_of_mapping(*mappings, is_strict=is_strict)
    if isinstance(own, Tensor) and isinstance(saved, Tensor) and _number_kind(own) != _number_kind(saved):
        return f" is a tensor of {saved.dtype}, not {own.dtype}"
    return ""


def _misfit_of_items(own: Sequence[object], saved: Sequence[object], *, is_strict: bool) -> str:
    # Of the rates of more groups, a scheduler takes the first.
    is_complete = len(own) == len(saved) or (len(own) < len(saved) and isinstance(own, list))
    if is_strict and not is_complete:
        return f" has {len(saved)} entries, not {len(own)}"
    if len(set(map(_kind, own))) > 1:
        return ""
    for index, one in enumerate(saved):
        if found := _misfit(own[0], one, is_strict=is_strict):
            return f".{index}{found}"
    return ""


def _misfit_of_mapping(own: Mapping[Any, object], saved: Mapping[Any, object], *, is_strict: bool) -> str:
    is_of_texts = all(isinstance(name, str) for name in own)
    for name, value in saved.items():
        example = own.get(name) if is_of_texts else next(iter(own.values()))
        found = _misfit(example, value, is_strict=is_strict)
        if not is_of_texts:
            found = found or _misfit(next(iter(own)), name, is_strict=is_strict)
        if found:
            return f".{name}{found}"
    missing = [name for name in own if name not in saved] if is_of_texts and is_strict else []
    return f".{missing[0]} is missing" if missing else ""


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor has a value for each of its elements."""
    return tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_quantized


def _number_kind(tensor: Tensor) -> tuple[bool, bool]:
    return tensor.is_floating_point(), tensor.is_complex()


def _kind(value: object) -> str:
    """What a value is, of the few kinds that cannot stand for each other; empty for those that nobody can tell."""
    if isinstance(value, bool):
        return "True or False"
    if isinstance(value, Real) or (isinstance(value, Tensor) and value.numel() == 1 and _is_plain(value)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a tensor" if isinstance(value, Tensor) else ""


def _shown(value: object) -> str:
    if value is None or (isinstance(value, str) and len(value) < 40):  # noqa: PLR2004 - fits a line
        return repr(value)
    return _kind(value) or f"of type {type(value).__name__}"
