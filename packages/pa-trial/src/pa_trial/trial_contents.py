"""The contents of a checkpoint: collected from a trial, compared with the trial that loads them, and loaded."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from pa_checkpoint.torch_states import SavedModel, TransactionalLoad, incompatibility
from pa_data.rng import restored_rng_states
from pa_trial import rng_states
from pa_trial._torch import COMPILED
from pa_trial.callback import PyTorchCallback
from pa_trial.checkpoint_files import STATE
from pa_trial.context_parts import ContextParts
from pa_trial.errors import InvalidCheckpointException
from pa_trial.plain_files import read_torch_file
from pa_trial.saved_trial import SavedTrial
from pa_trial.user_warnings import warn_user

MODELS, OPTIMIZERS, SCHEDULERS = "models_state_dict", "optimizers_state_dict", "lr_schedulers_state_dict"
CALLBACKS, SCALER, RNG = "callbacks", "scaler_state_dict", "rng_state"
BESIDE_WEIGHTS = "models_beside_state_dict"
"""Attributes of models that training changes and state dicts leave out."""
GRADIENTS, BUFFERS = "unfinished_gradients", "buffers"
"""The own state of a process until the next optimizer step."""

_DISTRIBUTED = "module"


def capture_trial(parts: ContextParts, callbacks: Mapping[str, PyTorchCallback]) -> dict[str, Any]:
    """Return the common state of all processes; the chief calls this.

    Args:
        parts: The parts of the trial's context.
        callbacks: The chief's callbacks, by name.
    """
    models, scaler = parts.trained.models, parts.trained.scaler
    content: dict[str, Any] = {
        name: [target.state_dict() for target in targets] for name, targets in _targets(parts).items()
    }
    content[CALLBACKS] = {name: callback.state_dict() for name, callback in callbacks.items()}
    content[BESIDE_WEIGHTS] = [SavedModel.of(model)._replace(weights={})._asdict() for model in models]
    if scaler is not None:
        content[SCALER] = scaler.state_dict()
    return content


def capture_process(parts: ContextParts) -> dict[str, Any]:
    """Return the state of this process.

    Args:
        parts: The parts of the trial's context.
    """
    content: dict[str, Any] = {RNG: rng_states.capture(parts.mover.device)}
    # An update that was interrupted between its pieces begins again.
    is_left = parts.run_settings.samples_per_update and parts.progress.batch_idx == parts.progress.batches_trained
    if not is_left and any(gradients := parts.trained.unfinished_gradients()):
        content[GRADIENTS] = gradients
    if parts.distributed.size > 1 and parts.trained.gradients_in_progress():
        content[BUFFERS] = [dict(model.named_buffers()) for model in parts.trained.models]
    return content


def require_fit(parts: ContextParts, content: Mapping[str, Any], own: Mapping[str, Any], saved: SavedTrial) -> None:
    """Raise an error if this trial cannot continue from the contents; nothing is changed.

    Args:
        parts: The parts of the trial's context.
        content: The common state of all processes.
        own: The state of this process.
        saved: The description of the checkpoint.

    Raises:
        InvalidCheckpointException: The checkpoint belongs to a different trial, or the trial was changed.
    """
    for name, targets in _targets(parts).items():
        _require_states(name, targets, content, saved)
    _require_same_groups(parts, own, saved)
    if RNG in own:
        cpu = torch.device("cpu")
        try:
            with restored_rng_states(cpu):
                rng_states.restore(own[RNG], cpu)
        except Exception as error:  # a wrong state may raise any error
            found = f"rng_state: {type(error).__name__}: {error}"
            raise _refusal(saved, found, "the RNG states of a process") from error


def take_over(
    parts: ContextParts,
    callbacks: Mapping[str, PyTorchCallback],
    content: Mapping[str, Any],
    own: Mapping[str, Any],
    saved: SavedTrial,
) -> None:
    """Load contents that were found to fit; if loading fails nevertheless, undo it.

    Args:
        parts: The parts of the trial's context.
        callbacks: The callbacks of this process, by name.
        content: The common state of all processes.
        own: The state of this process.
        saved: The description of the checkpoint.

    Raises:
        InvalidCheckpointException: A model does not accept its extra state.
    """
    with TransactionalLoad() as loading:
        _load_models(parts.trained.models, {**content, **own}, loading)
        for name in (OPTIMIZERS, SCHEDULERS):
            for target, state in zip(_targets(parts)[name], content[name], strict=True):
                loading.load(target, copy.deepcopy(state), partial(_unfit, saved, name, target))
        _load_scaler(parts, content)
        if GRADIENTS in own:
            parts.trained.load_unfinished_gradients(own[GRADIENTS])
        _load_callbacks(parts, callbacks, content)
    # Last, so that random draws of callbacks while they load do not change the restored states.
    if RNG in own:
        rng_states.restore(own[RNG], parts.mover.device)
    else:
        _warn(parts, "The checkpoint has no RNG state, so the current state is kept.")


def load_weights(models: Sequence[nn.Module], saved: SavedTrial, options: Mapping[str, Any]) -> None:
    """Load the weights of all models from a checkpoint, and nothing else.

    Args:
        models: The models that are wrapped.
        saved: The description of the checkpoint.
        options: The arguments of ``read_torch_file``.

    Raises:
        InvalidCheckpointException: They belong to other models. Nothing was loaded.
    """
    content = read_torch_file(saved.path / STATE, **options)
    _require_states(MODELS, models, content, saved)
    with TransactionalLoad() as loading:
        _load_models(models, {MODELS: content[MODELS]}, loading)


def fitted_weights(model: nn.Module, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return weights under the names that a model uses, where the names differ only by a wrapper.

    Args:
        model: The model, which may be compiled.
        weights: The saved weights, even of a model within ``DistributedDataParallel``.

    Example:
        >>> fitted_weights(nn.Linear(1, 1, bias=False), {"module.weight": 1})
        {'weight': 1}
    """
    own = list(model.state_dict())
    plain = {_plain_name(name): value for name, value in weights.items()}
    if len(plain) < len(weights) or set(plain) != {_plain_name(name) for name in own}:
        return dict(weights)
    return {name: plain[_plain_name(name)] for name in own}


def _plain_name(name: str) -> str:
    parts = [part for part in name.split(".") if part != COMPILED]
    while len(parts) > 1 and parts[0] == _DISTRIBUTED:
        del parts[0]
    return ".".join(parts)


def _targets(parts: ContextParts) -> dict[str, Sequence[Any]]:
    """Return the objects of a trial that have states, in the order in which they were wrapped."""
    trained = parts.trained
    schedulers = [wrapped.scheduler for wrapped in trained.lr_schedulers]
    return {MODELS: trained.models, OPTIMIZERS: trained.optimizers, SCHEDULERS: schedulers}


def _require_states(name: str, targets: Sequence[Any], content: Mapping[str, Any], saved: SavedTrial) -> None:
    """Raise an error unless there is a fitting state for each target."""
    found: object = content.get(name)
    if not isinstance(found, list) or not all(isinstance(state, Mapping) for state in cast("list[object]", found)):
        raise _refusal(saved, f"{name} is not a list of states", "the content of a trial's checkpoint")
    states = cast("list[dict[str, Any]]", found)
    if len(states) != len(targets):
        kinds = ", ".join(type(target).__name__ for target in targets) or "none"
        raise _refusal(saved, f"{name} of {len(states)} objects", f"of {len(targets)}, as in the trial: {kinds}")
    for target, state in zip(targets, states, strict=True):
        fitted = fitted_weights(target, state) if name == MODELS else state
        if (problem := incompatibility(target, fitted, source="checkpoint")) is not None:
            raise _unfit(saved, name, target, problem)


def _require_same_groups(parts: ContextParts, own: Mapping[str, Any], saved: SavedTrial) -> None:
    """Raise an error for gradients of an unfinished group if the size of groups has changed."""
    frequency = saved.aggregation_frequency
    if GRADIENTS in own and frequency is not None and frequency != parts.aggregation_frequency:
        raise InvalidCheckpointException(
            "The checkpoint was saved in the middle of an aggregation group. Nothing was loaded.",
            given=f"{saved.path}, saved with aggregation_frequency={frequency}, and now {parts.aggregation_frequency}",
            do=f"Pass init(aggregation_frequency={frequency}), or fit(warm_start=...) to start over with its weights.",
        )


def _load_models(models: Sequence[nn.Module], content: Mapping[str, Any], loading: TransactionalLoad) -> None:
    beside: list[dict[str, Any]] = content.get(BESIDE_WEIGHTS, [{}] * len(models))
    buffers: list[dict[str, Any]] = content.get(BUFFERS, [{}] * len(models))
    saved: dict[str, SavedModel] = {}
    for number, (model, weights) in enumerate(zip(models, content[MODELS], strict=True)):
        loading.keep_weights(model)
        others = {**beside[number].get("other_buffers", {}), **buffers[number]}
        saved[str(number)] = SavedModel(fitted_weights(model, weights), others, beside[number].get("trainable", {}))
    loading.load_models({str(number): model for number, model in enumerate(models)}, saved)


def _load_scaler(parts: ContextParts, content: Mapping[str, Any]) -> None:
    scaler, state = parts.trained.scaler, content.get(SCALER)
    if scaler is None and state is not None:
        _warn(parts, "The checkpoint has the state of a gradient scaler, but the trial has no scaler to load it into.")
    elif scaler is not None and state:
        scaler.load_state_dict(copy.deepcopy(state))
    elif scaler is not None and (state is None or scaler.is_enabled()):  # the state of a disabled scaler is empty
        _warn(parts, "The checkpoint has no state of a gradient scaler: the scaler of the trial starts from scratch.")


def _load_callbacks(parts: ContextParts, callbacks: Mapping[str, PyTorchCallback], content: Mapping[str, Any]) -> None:
    states: Mapping[str, Any] = content.get(CALLBACKS, {})
    for name, callback in callbacks.items():
        if name in states:
            callback.load_state_dict(states[name])
        elif type(callback).load_state_dict is not PyTorchCallback.load_state_dict:
            _warn(parts, f"The checkpoint has no state of the callback {name!r}, which starts from scratch.")


def _warn(parts: ContextParts, message: str) -> None:
    if parts.distributed.rank == 0:
        warn_user(message)


def _unfit(saved: SavedTrial, name: str, target: object, found: str) -> InvalidCheckpointException:
    kind = type(target).__name__
    return _refusal(saved, f"{name}, of {kind}: {found}", f"a state of {kind}, as in the trial")


def _refusal(saved: SavedTrial, found: str, expected: str) -> InvalidCheckpointException:
    return InvalidCheckpointException(
        "The checkpoint does not fit the trial. Nothing was loaded.",
        given=f"{saved.path}: {found}",
        expected=expected,
        do="Make the trial as it was when the checkpoint was saved, or name a checkpoint of this trial.",
    )
