"""Loads what a checkpoint file holds, all of it or nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pa_core.checkpoint import MODEL, MODULES, OPTIMIZER, SCHEDULER, TRAINABLE_ONLY, Trained, apart
from pa_core.errors import CheckpointError
from pa_core.incompatible_state import has_own_form, misfit_of_optimizer, misfit_of_scheduler, without_foreign_entries
from pa_core.load_with_rollback import does_not_fit, load_optimizer_or_undo, load_or_undo, refusals_explained
from pa_core.model_tensors import differences_of_weights, frozen_names, list_differences, local_piece
from pa_core.sharding.sharded_states import load_whole_weights, split_like_parameters

_OURS = "Load a file that save_checkpoint wrote."


def load_checkpoint_into(
    content: Mapping[str, Any],
    trained: Mapping[str, Trained],
    *,
    needs_optimizer: bool,
    makes_optimizer: bool,
    source: str | Path,
) -> None:
    """Load what a checkpoint holds, all of it or, when something does not fit, nothing.

    Everything is compared with what is to take it over before the first of them changes. What only loading tells is
    undone, for which the host holds the weights of the model again.

    Args:
        content: What ``read_checkpoint`` returned.
        trained: What gets the states, by name; first the model itself. An optimizer or a scheduler gets what the file
            has of it, if anything. Further modules in the file are left out.
        needs_optimizer: Whether the state of the model's optimizer in the file has to be loaded.
        makes_optimizer: Whether a function makes this optimizer when the first training run begins.
        source: The file, for messages.

    Raises:
        CheckpointError: The checkpoint belongs to other models or optimizers, or something in it is of another kind.
    """
    own, modules = apart(trained)
    saved = _states_by_name(content, modules, source)
    parts = [(own, content), *((one, saved[name]) for name, one in modules.items())]
    if needs_optimizer and own.optimizer is None and OPTIMIZER in content:
        given = f"{source} with {OPTIMIZER}"
        if makes_optimizer:
            raise _refusal(
                "The checkpoint has the state of an optimizer that create_optimizer_fn is still to make",
                given,
                "Load it in on_training_run_start() of a callback; with a Run, in its block.",
            )
        raise _refusal(
            "The trainer has no optimizer for the state in the checkpoint", given, "Pass load_optimizer=False."
        )
    is_partial = content.get(TRAINABLE_ONLY) is True
    for part, states in parts:
        _check(part, states, source, is_partial=is_partial)
    with ExitStack() as undo:
        for part, states in parts:
            _load(part, states, source, undo, is_partial=is_partial)
        undo.pop_all()


def _states_by_name(
    content: Mapping[str, Any], modules: Mapping[str, Trained], source: str | Path
) -> dict[str, dict[str, Any]]:
    entry: object = content.get(MODULES)
    saved = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
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
    """Raise an error for anything that does not fit, as far as the objects and the states tell."""
    for name in (MODEL, OPTIMIZER, SCHEDULER):
        _require_state(states.get(name, {}), name, source)
    _check_weights(part.model, states[MODEL], source, is_partial=is_partial)
    optimizer, scheduler = part.optimizer, part.scheduler
    if optimizer is not None and OPTIMIZER in states:
        misfit = misfit_of_optimizer(optimizer, states[OPTIMIZER])
        if part.is_sharded and has_own_form(optimizer):
            misfit = "which part of such a state belongs to which process, the optimizer alone knows"
        if misfit is not None:
            raise _explain(optimizer, OPTIMIZER, source)(misfit)
    if scheduler is not None and SCHEDULER in states:
        misfit = misfit_of_scheduler(scheduler, states[SCHEDULER])
        if misfit is not None:
            raise _explain(scheduler, SCHEDULER, source)(misfit)


def _check_weights(model: nn.Module, weights: Mapping[str, Any], source: str | Path, *, is_partial: bool) -> None:
    differences = differences_of_weights(model, weights, "file")
    if is_partial:
        left_out = frozen_names(model.state_dict(keep_vars=True)) - weights.keys()
        differences = {name: difference for name, difference in differences.items() if name not in left_out}
    if differences:
        raise _refusal(
            "The checkpoint belongs to another model",
            f"{source} with {list_differences(differences.values())}",
            f"Build the {type(model).__name__} as it was when the checkpoint was saved"
            + (", with the same parameters frozen." if is_partial else "."),
        )


def _load(part: Trained, states: Mapping[str, Any], source: str | Path, undo: ExitStack, *, is_partial: bool) -> None:
    """Load the states of a part, and note how each is undone."""
    # A copy of each state: training continues in the tensors that are loaded, and the caller has the content.
    optimizer, scheduler = part.optimizer, part.scheduler
    if scheduler is not None and SCHEDULER in states:
        state, before = without_foreign_entries(scheduler, states[SCHEDULER]), scheduler.state_dict()
        explain = _explain(scheduler, SCHEDULER, source)
        load_or_undo(scheduler.load_state_dict, copy.deepcopy(state), before, undo, explain)
    if optimizer is not None and OPTIMIZER in states:
        state = split_like_parameters(states[OPTIMIZER], optimizer) if part.is_sharded else states[OPTIMIZER]
        state = _with_notes_of_schedulers(optimizer, copy.deepcopy(state))
        load_optimizer_or_undo(optimizer, state, undo, _explain(optimizer, OPTIMIZER, source))
    undo.callback(copy_weights(part.model))
    with refusals_explained(_explain(part.model, MODEL, source)):
        if part.is_sharded:
            load_whole_weights(part.model, states[MODEL])
        else:
            part.model.load_state_dict(states[MODEL], strict=not is_partial)


def _with_notes_of_schedulers(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Add what schedulers have noted in the groups, such as ``initial_lr``, where the file was saved without one."""
    if not has_own_form(optimizer):
        for own, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
            saved.update({name: value for name, value in own.items() if name not in {*saved, *optimizer.defaults}})
    return state


def copy_weights(model: nn.Module) -> Callable[[], None]:
    """Copy the weights and the extra state of a model to the host; what is returned brings them back.

    Of a sharded model, each process copies its pieces.

    Args:
        model: The model without wrappers.
    """
    weights = {name: _copied(value) for name, value in model.state_dict().items()}
    extra_states = {
        module: copy.deepcopy(module.get_extra_state())
        for module in model.modules()
        if _keeps_extra_state(type(module))
    }

    def bring_back() -> None:
        with torch.no_grad():
            for name, value in model.state_dict().items():
                if isinstance(value, Tensor):
                    local_piece(value).copy_(weights[name])
        for module, state in extra_states.items():
            module.set_extra_state(state)

    return bring_back


def _keeps_extra_state(kind: type[nn.Module]) -> bool:
    return (
        nn.Module.get_extra_state is not kind.get_extra_state and nn.Module.set_extra_state is not kind.set_extra_state
    )


def _copied(value: object) -> Any:
    return local_piece(value.detach()).to("cpu", copy=True) if isinstance(value, Tensor) else None


def _explain(target: object, name: str, source: str | Path) -> Callable[[str], CheckpointError]:
    do = f"Build the {type(target).__name__} as it was when the checkpoint was saved"
    if not isinstance(target, nn.Module):
        do += f", or pass {'load_optimizer' if isinstance(target, Optimizer) else 'load_scheduler'}=False"
    return partial(does_not_fit, target, f"{source} with the {name}", f"{do}.")


def _refusal(problem: str, given: str, do: str) -> CheckpointError:
    return CheckpointError(f"{problem}; nothing was loaded.", given=given, do=do)
