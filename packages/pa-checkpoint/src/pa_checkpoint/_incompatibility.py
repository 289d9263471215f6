"""Finds the reason why a saved state would not fit an object, before it is loaded.

Torch optimizers and schedulers accept nearly any state, and then fail in the next step. A module loads the matching
weights before it raises an error about the others.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pa_checkpoint._sharded_tensor import StoredTensor
from pa_checkpoint._torch import NESTED_SCHEDULERS

_KINDS: tuple[tuple[Any, Any, str], ...] = (
    (bool, bool | None, "True or False"),
    (Real | Tensor, Real | Tensor, "a number"),
    (str, str, "a text"),
    ((list, tuple), (list, tuple), "a list"),
    (Mapping, Mapping, "a dictionary"),
)
"""The type of a value, the types that may replace it, and the name of these types in messages."""

_NOT_OF_OPTIMIZER = "it is not what an optimizer's state_dict() returns"


def has_own_form(optimizer: Optimizer) -> bool:
    """Return whether an optimizer overrides ``state_dict`` or ``load_state_dict``, or has hooks for them.

    You call it to find out whether ``incompatibility`` can compare a state with the optimizer. The state of an
    optimizer that overrides these methods has a form that only the optimizer knows, and ``incompatibility`` then
    returns None without a comparison.

    Args:
        optimizer: The optimizer.

    Returns:
        True if only its ``load_state_dict`` knows the form of its state.

    Example:
        >>> import torch
        >>> from torch.optim import SGD
        >>> from pa_checkpoint.torch_states import has_own_form
        >>> optimizer = SGD([torch.zeros(1)], lr=0.1)
        >>> has_own_form(optimizer)
        False
        >>> _ = optimizer.register_state_dict_post_hook(lambda optimizer, state: state)
        >>> has_own_form(optimizer)
        True
    """
    kind = type(optimizer)
    hooks = [value for name, value in vars(optimizer).items() if "state_dict" in name and "hooks" in name]
    is_of_torch = kind.state_dict is Optimizer.state_dict and kind.load_state_dict is Optimizer.load_state_dict
    return not is_of_torch or any(hooks)


def incompatibility(
    target: object,
    state: Any,
    *,
    source: str = "state",
    left_out: Collection[str] = (),
    groups: Sequence[Sequence[Tensor]] | None = None,
) -> str | None:
    """Return the reason why a state does not fit an object, or None.

    You call it before ``load_state_dict``, because torch optimizers and schedulers accept nearly any state and then
    fail in the next step. Nothing is changed. For a module, it compares the names, shapes and kinds of the weights. For
    a torch optimizer, it compares the entries of each parameter with the entries that a first step would create. For a
    torch scheduler, it compares the entries of the state with the scheduler's own entries. For any other object, it
    returns None.

    Args:
        target: A module without wrappers such as ``DistributedDataParallel``, an optimizer, a scheduler, or any other
            object.
        state: The result of ``state_dict`` of a similar object. Tensors may be in memory, or on disk as
            ``StoredTensor``.
        source: A word for the source of a module's weights, which appears in the reason. The default is "state"; you
            may pass "file", for example.
        left_out: The names of a module's weights that are not compared. By default, all are compared.
        groups: The parameters of each group of the optimizer, if the state has groups that the optimizer lacks. The
            default, None, compares with the groups of the optimizer.

    Returns:
        The reason in a few words, or None if the state fits or cannot be compared. At most eight different weights are
        listed. Pass the reason to ``does_not_fit`` to raise an error.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from pa_checkpoint.torch_states import incompatibility
        >>> incompatibility(nn.Linear(2, 1, bias=False), {"weight": nn.Linear(3, 1).weight}, source="file")
        'weight: (1, 3) in the file, (1, 2) in the model'
        >>> optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(2))])
        >>> wrong = {"step": torch.ones(()), "exp_avg": torch.zeros(3), "exp_avg_sq": torch.zeros(2)}
        >>> incompatibility(optimizer, {**optimizer.state_dict(), "state": {0: wrong}})
        'state.0.exp_avg is of shape (3,), not (2,)'
        >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        >>> incompatibility(scheduler, {**scheduler.state_dict(), "base_lrs": []})
        'base_lrs has 0 entries, not 1'
    """
    if isinstance(target, nn.Module):
        differences = differences_of_weights(target, state, source)
        return _list([difference for name, difference in differences.items() if name not in left_out])
    if isinstance(target, Optimizer):
        return None if has_own_form(target) else _incompatibility_of_optimizer(target, state, groups)
    if isinstance(target, LRScheduler) and _is_of_torch(type(target)):
        return _incompatibility_of_scheduler(target, state)
    return None


def differences_of_weights(model: nn.Module, weights: Mapping[str, Any], source: str) -> dict[str, str]:
    """Return a description of each weight in which a model and its saved weights differ, by name.

    Args:
        model: The model without wrappers.
        weights: The saved state dict.
        source: A word for the source of the saved weights.
    """
    own = model.state_dict()
    differences = {name: f"missing: {name}" for name in own if name not in weights}
    differences |= {name: f"unexpected: {name}" for name in weights if name not in own}
    for name in (name for name in own if name in weights):
        if name.rpartition(".")[2] == "_extra_state":
            continue  # only set_extra_state of the module knows its content
        value = weights[name].example() if isinstance(weights[name], StoredTensor) else weights[name]
        for property_of in (_shape, _kind_of_tensor):
            saved, present = property_of(value), property_of(own[name])
            if saved != present:
                differences[name] = f"{name}: {saved} in the {source}, {present} in the model"
                break
    return differences


_SHOWN_DIFFERENCES = 8  # enough to see which model it is, few enough to read


def _list(differences: Sequence[str]) -> str | None:
    """Return some differences on one line, or None."""
    hidden = len(differences) - _SHOWN_DIFFERENCES
    return "; ".join(differences[:_SHOWN_DIFFERENCES]) + (f"; and {hidden} more" if hidden > 0 else "") or None


def _kind_of_tensor(value: object) -> str | None:
    """Return the kind of a tensor, which loading cannot change, unlike its precision."""
    if not isinstance(value, Tensor):
        return None
    numbers = "complex numbers" if value.is_complex() else "numbers" if value.is_floating_point() else "whole numbers"
    place = ", without values" if value.is_meta else ", quantized" if value.is_quantized else ""
    return f"{numbers} in a tensor of layout {str(value.layout).removeprefix('torch.')}{place}"


def _shape(value: object) -> tuple[int, ...] | None:
    """Return the shape of a tensor, or None for any other value."""
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _incompatibility_of_optimizer(
    optimizer: Optimizer, state: Mapping[str, Any], groups: Sequence[Sequence[Tensor]] | None
) -> str | None:
    """Return the first reason why a state does not fit an optimizer."""
    parameters = [group["params"] for group in optimizer.param_groups] if groups is None else groups
    saved: Any = state.get("param_groups")
    by_number: Any = state.get("state")
    if not (_is(saved, list) and _is(by_number, Mapping)):
        return _NOT_OF_OPTIMIZER
    if len(saved) != len(parameters):
        return f"it has {len(saved)} groups, not {len(parameters)}"
    first, made = 0, dict[tuple[int, torch.Size, torch.dtype], dict[str, Any]]()
    for index, (group, of_group) in enumerate(zip(saved, parameters, strict=True)):
        numbers = [*range(first, first + len(of_group))]
        first += len(of_group)
        own = optimizer.param_groups[index] if index < len(optimizer.param_groups) else {}
        if incompatibility := _incompatibility_of_group(
            optimizer, group, {**optimizer.defaults, **own, "params": numbers}
        ):
            return f"param_groups.{index}{incompatibility}"
        for number, parameter in zip(numbers, of_group, strict=True):
            key = index, parameter.shape, parameter.dtype
            if number in by_number and key not in made:
                made[key] = _entries_of_first_step(type(optimizer), group, parameter)
            if incompatibility := _incompatibility_of_entries(optimizer, made.get(key, {}), by_number.get(number, {})):
                return f"state.{number}{incompatibility}"
    return None


def _is(value: object, kind: Any) -> bool:
    """Return whether a value has a type, hidden from type checkers, which would require the types in a container."""
    return isinstance(value, kind)


def _incompatibility_of_group(optimizer: Optimizer, group: Any, own: Mapping[str, Any]) -> str | None:
    """Return the first reason why a saved group does not fit a group of the optimizer."""
    # Flags have come with releases of torch, which adds those that are missing.
    required = [
        "params",
        *(name for name, default in optimizer.defaults.items() if type(default) in (float, int, tuple)),
    ]
    if incompatibility := _incompatibility_of_value(dict.fromkeys(required), group):
        return incompatibility
    if repr(group["params"]) != repr(own["params"]):
        return f".params is {reprlib.repr(group['params'])}, not the numbers of {len(own['params'])} parameters"
    for name in filter(group.__contains__, own):
        is_flag = own[name] is None and name in optimizer.defaults and _is_of_torch(type(optimizer))
        if incompatibility := _incompatibility_of_value(is_flag or own[name], group[name]):
            return f".{name}{incompatibility}"
    return None


def _incompatibility_of_entries(optimizer: Optimizer, made: Mapping[str, Any], entries: Any) -> str | None:
    """Return the first reason why the saved entries of a parameter do not fit."""
    is_sgd = isinstance(optimizer, SGD)  # which makes its momentum when it is missing
    required = {} if is_sgd or entries == {} else dict.fromkeys(made)
    if incompatibility := _incompatibility_of_value(required, entries):
        return incompatibility
    for name in filter(entries.__contains__, made):
        incompatibility = (
            None if is_sgd and entries[name] is None else _incompatibility_of_entry(name, made[name], entries[name])
        )
        if incompatibility:
            return f".{name}{incompatibility}"
    return None


def _incompatibility_of_entry(name: str, example: object, entry: Any) -> str | None:
    """Return the reason why a saved entry of a parameter does not fit."""
    if not isinstance(example, Tensor) or (name == "step" and isinstance(entry, Real)):  # as earlier releases had it
        return _incompatibility_of_value(example, entry)
    found = entry.example() if isinstance(entry, StoredTensor) else entry
    if not isinstance(found, Tensor):
        return f" is {reprlib.repr(found)}, not a tensor"
    if found.shape != example.shape:
        return f" is of shape {tuple(found.shape)}, not {tuple(example.shape)}"
    kinds = _kind_of_tensor(found), _kind_of_tensor(torch.empty(0, dtype=example.dtype))
    return None if kinds[0] == kinds[1] else f" is of {kinds[0]}, not {kinds[1]}"


def _incompatibility_of_value(own: Any, saved: Any) -> str | None:
    """Return the reason why a saved value, or an entry in it, does not fit a value, or None."""
    for kind, accepted, words in _KINDS:
        if _is(own, kind):
            if not _is(saved, accepted):
                return f" is {reprlib.repr(saved)}, not {words}"
            if isinstance(saved, Tensor) and saved.numel() != 1:
                return f" is a tensor of shape {tuple(saved.shape)}, not {words}"
            break
    pairs: Iterable[tuple[object, Any, Any]] = ()
    if _is(own, (list, tuple)):
        # Of the rates of more groups, a scheduler takes the first.
        if len(saved) < len(own) or (_is(own, tuple) and len(saved) > len(own)):
            return f" has {len(saved)} entries, not {len(own)}"
        pairs = ((index, value, saved[index]) for index, value in enumerate(own))
    elif _is(own, Mapping):
        if missing := [name for name in own if isinstance(name, str) and name not in saved]:
            return f".{missing[0]} is missing"
        pairs = ((name, value, saved[name]) for name, value in own.items() if name in saved)
    return next((f".{name}{found}" for name, *both in pairs if (found := _incompatibility_of_value(*both))), None)


def _entries_of_first_step(kind: type[Optimizer], group: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    """Return the entries that a torch optimizer would create for a parameter, without memory; empty if unknown."""
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


def _incompatibility_of_scheduler(scheduler: LRScheduler, state: object) -> str | None:
    """Return the first reason why a state does not fit a scheduler."""
    if not isinstance(state, Mapping):
        return "it is not what a scheduler's state_dict() returns"
    saved = cast("Mapping[str, Any]", state)
    for name, value in scheduler.state_dict().items():
        if name in saved and name != "lr_lambdas":  # functions in it have no state
            if incompatibility := _incompatibility_of_value(value, saved[name]):
                return f"{name}{incompatibility}"
        elif name in ("last_epoch", "base_lrs", NESTED_SCHEDULERS):
            return f"{name} is missing"
    return None


def without_foreign_entries(scheduler: object, state: Any) -> Any:
    """Return the entries of a state that a torch scheduler has; for other objects, return the whole state.

    Other releases of torch have different entries. A custom scheduler may create further entries when it steps.

    Args:
        scheduler: A scheduler, or any other object.
        state: A state that fits it.
    """
    if not isinstance(scheduler, LRScheduler) or not _is_of_torch(type(scheduler)):
        return state
    taken = {name: state[name] for name in scheduler.state_dict() if name in state}
    if NESTED_SCHEDULERS in taken:
        nested: Sequence[object] = getattr(scheduler, NESTED_SCHEDULERS, ())
        pairs = zip(nested, taken[NESTED_SCHEDULERS], strict=True)
        taken[NESTED_SCHEDULERS] = [without_foreign_entries(*pair) for pair in pairs]
    return taken


def _is_of_torch(kind: type) -> bool:
    """Return whether a class of optimizers or schedulers belongs to torch."""
    return kind.__module__.startswith("torch.optim.")
