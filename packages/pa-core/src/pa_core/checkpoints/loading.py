"""Loading the content of a checkpoint file, all of it or nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch import nn
from torch.optim import Optimizer
from typing_extensions import TypeIs

from pa_checkpoint.torch_states import TransactionalLoad, does_not_fit, has_own_form, incompatibility
from pa_core._tensors import frozen_names
from pa_core.checkpoints.checkpoint import (
    LOSS_FUNC,
    MODEL,
    MODULES,
    OPTIMIZER,
    SCHEDULER,
    TRAINABLE_ONLY,
    Trained,
    apart,
)
from pa_core.errors import CheckpointError
from pa_core.user_warnings import warn_user

_OURS = "Load a file that save_checkpoint wrote."


def load_checkpoint_into(
    content: Mapping[str, Any],
    trained: Mapping[str, Trained],
    *,
    needs_optimizer: bool,
    makes_optimizer: bool,
    source: str | Path,
) -> None:
    """Load the content of a checkpoint, all of it or, if a part does not fit, nothing.

    All states are compared with their objects before the first object changes. If an error occurs only during loading,
    the changes are undone; for this purpose, the host keeps a copy of the model's weights.

    Args:
        content: The content, from ``read_checkpoint``.
        trained: The modules that get the states, by name; the model itself is the first. An optimizer or a scheduler
            gets its state from the file, if there is any. Further modules in the file are ignored.
        needs_optimizer: Whether the state of the model's optimizer in the file has to be loaded.
        makes_optimizer: Whether a function creates this optimizer when the first training run begins.
        source: The file, for messages.

    Raises:
        CheckpointError: The checkpoint belongs to other models or optimizers, or an entry has the wrong type.
    """
    own, modules = apart(trained)
    if LOSS_FUNC in modules and LOSS_FUNC not in _modules_in(content):
        loss_func = modules.pop(LOSS_FUNC).model
        warn_user(
            f"{source} has no weights of the loss function {type(loss_func).__name__}: an earlier version saved "
            "it, or a run with another loss function. They stay unchanged."
        )
    saved = _states_by_name(content, modules, source)
    parts = [(own, content), *((module, saved[name]) for name, module in modules.items())]
    if needs_optimizer and own.optimizer is None and OPTIMIZER in content:
        given = f"{source} with {OPTIMIZER}"
        if makes_optimizer:
            raise _refusal(
                "The checkpoint has the state of an optimizer that create_optimizer_fn has not created yet",
                given,
                "Load it in on_training_run_start() of a callback; with a Run, in its block.",
            )
        raise _refusal(
            "The trainer has no optimizer for the state in the checkpoint", given, "Pass load_optimizer=False."
        )
    is_partial = content.get(TRAINABLE_ONLY) is True
    for part, states in parts:
        _check(part, states, source, is_partial=is_partial)
    with TransactionalLoad() as loading:
        for part, states in parts:
            _load(part, states, source, loading, is_partial=is_partial)


def has_weights_of(loss_func: object, content: Mapping[str, Any]) -> TypeIs[nn.Module]:
    """Return whether a checkpoint has the weights of a loss function, for example a running center.

    Args:
        loss_func: The loss function of a trainer.
        content: The checkpoint.
    """
    saved = _modules_in(content).get(LOSS_FUNC)
    weights: object = cast("dict[str, Any]", saved).get(MODEL) if isinstance(saved, dict) else None
    return (
        isinstance(loss_func, nn.Module) and isinstance(weights, dict) and incompatibility(loss_func, weights) is None
    )


def _modules_in(content: Mapping[str, Any]) -> dict[str, Any]:
    entry: object = content.get(MODULES)
    return cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}


def _states_by_name(
    content: Mapping[str, Any], modules: Mapping[str, Trained], source: str | Path
) -> dict[str, dict[str, Any]]:
    saved = _modules_in(content)
    missing = [name for name in modules if name not in saved]
    if missing:
        raise _refusal(
            "The checkpoint lacks modules that are trained with the model",
            f"{source} with {', '.join(map(repr, saved)) or 'no modules'} besides the model, without "
            f"{', '.join(map(repr, missing))}",
            f"Load it before add_module({missing[0]!r}, ...) is called, or load a checkpoint that has them.",
        )
    for name in modules:
        _require_state(saved[name], f"{MODULES}[{name!r}]", source)
        _require_state(saved[name].get(MODEL), f"{MODEL} of {MODULES}[{name!r}]", source)
    return saved


def _require_state(state: object, name: str, source: str | Path) -> None:
    if not isinstance(state, dict):
        raise _refusal("An entry of the checkpoint is not a state", f"{source}, and {name} in it", _OURS)


def _check(part: Trained, states: Mapping[str, Any], source: str | Path, *, is_partial: bool) -> None:
    """Raise an error for a state that does not fit, as far as can be told without loading it."""
    for name in (MODEL, OPTIMIZER, SCHEDULER):
        _require_state(states.get(name, {}), name, source)
    _check_weights(part.model, states[MODEL], source, is_partial=is_partial)
    optimizer, scheduler = part.optimizer, part.scheduler
    if optimizer is not None and OPTIMIZER in states:
        found = incompatibility(optimizer, states[OPTIMIZER])
        if part.is_sharded and has_own_form(optimizer):
            found = "only the optimizer knows which process each part of such a state belongs to"
        if found is not None:
            raise _explain(optimizer, OPTIMIZER, source)(found)
    if scheduler is not None and SCHEDULER in states:
        found = incompatibility(scheduler, states[SCHEDULER])
        if found is not None:
            raise _explain(scheduler, SCHEDULER, source)(found)


def _check_weights(model: nn.Module, weights: Mapping[str, Any], source: str | Path, *, is_partial: bool) -> None:
    left_out = frozen_names(model.state_dict(keep_vars=True)) - weights.keys() if is_partial else ()
    found = incompatibility(model, weights, source="file", left_out=left_out)
    if found is not None:
        raise _refusal(
            "The checkpoint belongs to another model",
            f"{source} with {found}",
            f"Build the {type(model).__name__} as it was when the checkpoint was saved"
            + (", with the same parameters frozen." if is_partial else "."),
        )


def _load(
    part: Trained, states: Mapping[str, Any], source: str | Path, loading: TransactionalLoad, *, is_partial: bool
) -> None:
    # A copy of each state: training continues in the tensors that are loaded, and the caller has the content.
    optimizer, scheduler = part.optimizer, part.scheduler
    if scheduler is not None and SCHEDULER in states:
        loading.load(scheduler, copy.deepcopy(states[SCHEDULER]), _explain(scheduler, SCHEDULER, source))
    if optimizer is not None and OPTIMIZER in states:
        loading.load_optimizer(optimizer, copy.deepcopy(states[OPTIMIZER]), _explain(optimizer, OPTIMIZER, source))
    loading.load_weights(part.model, states[MODEL], _explain(part.model, MODEL, source), is_partial=is_partial)


def _explain(target: object, name: str, source: str | Path) -> Callable[[str], CheckpointError]:
    do = f"Build the {type(target).__name__} as it was when the checkpoint was saved"
    if not isinstance(target, nn.Module):
        do += f", or pass {'load_optimizer' if isinstance(target, Optimizer) else 'load_scheduler'}=False"
    return partial(does_not_fit, target, f"{source} with the {name}", f"{do}.")


def _refusal(problem: str, given: str, do: str) -> CheckpointError:
    return CheckpointError(f"{problem}; nothing was loaded.", given=given, do=do)
