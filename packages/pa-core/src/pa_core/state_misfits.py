"""Why a saved state would not fit the optimizer or the scheduler that is to take it over, found before it is loaded.

Optimizers and schedulers of torch accept nearly everything that they are given, and fail in the next step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pa_core._torch import NESTED_SCHEDULERS

__all__ = ["has_own_form", "misfit_of_optimizer", "misfit_of_scheduler", "without_foreign_entries"]

_NOT_OF_OPTIMIZER = "it is not what an optimizer's state_dict() returns"


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
        'state.0.exp_avg is of shape (3,), not (2,)'
    """
    if has_own_form(optimizer):
        return None
    parameters = [group["params"] for group in optimizer.param_groups] if groups is None else groups
    try:
        saved, by_number = [(group["params"], group) for group in state["param_groups"]], dict(state["state"])
    except (KeyError, TypeError, ValueError):
        return _NOT_OF_OPTIMIZER
    if len(saved) != len(parameters):
        return f"it has {len(saved)} groups, not {len(parameters)}"
    # Flags have come with releases of torch, which adds those that are missing.
    needed = [name for name, value in optimizer.defaults.items() if type(value) in (float, int, tuple)]
    made: dict[tuple[int, torch.Size, torch.dtype], dict[str, Any]] = {}
    for index, ((numbers, group), of_group) in enumerate(zip(saved, parameters, strict=True)):
        missing = [f"{name} is missing" for name in needed if name not in group]
        if len(numbers) != len(of_group):
            missing = [f"params has {len(numbers)} entries, not {len(of_group)}"]
        if missing:
            return f"param_groups.{index}.{missing[0]}"
        for number, parameter in zip(numbers, of_group, strict=True):
            key = index, parameter.shape, parameter.dtype
            if number in by_number and key not in made:
                made[key] = _entries_of_first_step(type(optimizer), group, parameter)
            if misfit := _misfit_of_entries(optimizer, made.get(key, {}), by_number.get(number, {})):
                return f"state.{number}.{misfit}"
    return None


def _misfit_of_entries(optimizer: Optimizer, made: Mapping[str, Any], entries: Mapping[str, Any]) -> str | None:
    for name, example in made.items() if entries else ():
        entry = entries.get(name)
        if entry is None and not isinstance(optimizer, SGD):  # which makes its momentum when it is missing
            return f"{name} is missing"
        if isinstance(example, Tensor) and isinstance(entry, Tensor) and entry.shape != example.shape:
            return f"{name} is of shape {tuple(entry.shape)}, not {tuple(example.shape)}"
    return None


def _entries_of_first_step(kind: type[Optimizer], group: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    """What an optimizer of torch gathers of a parameter, without its memory; nothing where none can tell."""
    if not _is_of_torch(kind):
        return {}
    example = nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype, device="meta"))
    example.grad = torch.empty_like(example)
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


def misfit_of_scheduler(scheduler: object, state: object) -> str | None:
    """Return why a state does not fit a scheduler; None where it fits, and where nobody can tell.

    Args:
        scheduler: The scheduler.
        state: What the ``state_dict`` of another one returned.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        >>> misfit_of_scheduler(scheduler, {**scheduler.state_dict(), "base_lrs": []})
        'base_lrs has 0 entries, not 1'
    """
    if not isinstance(state, Mapping):
        return "it is not what a scheduler's state_dict() returns"
    if not isinstance(scheduler, LRScheduler) or not _is_of_torch(type(scheduler)):
        return None
    saved, own = cast("Mapping[str, Any]", state), scheduler.state_dict()
    for name in ("last_epoch", "base_lrs", NESTED_SCHEDULERS):
        if name in own and name not in saved:
            return f"{name} is missing"
        # Of the rates of more groups, a scheduler takes the first.
        if isinstance(own.get(name), list) and len(saved[name]) < len(own[name]):
            return f"{name} has {len(saved[name])} entries, not {len(own[name])}"
    nested: Sequence[object] = getattr(scheduler, NESTED_SCHEDULERS, ())
    for index, (one, of_one) in enumerate(zip(nested, saved.get(NESTED_SCHEDULERS, ()), strict=False)):
        if misfit := misfit_of_scheduler(one, of_one):
            return f"{NESTED_SCHEDULERS}.{index}.{misfit}"
    return None


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
