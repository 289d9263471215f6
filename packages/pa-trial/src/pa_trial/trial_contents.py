"""The contents of a checkpoint: collected from a trial, compared with the trial that loads them, and loaded."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from pa_checkpoint import CheckpointError
from pa_checkpoint.torch_states import AllOrNothing, SavedModel, misfit
from pa_core.parts import COMPILED, warn_user
from pa_trial import rng_states
from pa_trial.callback import PyTorchCallback
from pa_trial.context_parts import ContextParts
from pa_trial.errors import InvalidCheckpointException
from pa_trial.saved_trial import SavedTrial

MODELS, OPTIMIZERS, SCHEDULERS = "models_state_dict", "optimizers_state_dict", "lr_schedulers_state_dict"
CALLBACKS, SCALER, RNG = "callbacks", "scaler_state_dict", "rng_state"
BESIDE_WEIGHTS = "models_beside_state_dict"
"""What training changes in a model and its state dict leaves out."""
GRADIENTS, BUFFERS = "unfinished_gradients", "buffers"
"""The own state of a process until the next optimizer step."""

_DISTRIBUTED = "module"


def capture_trial(parts: ContextParts, callbacks: Mapping[str, PyTorchCallback]) -> dict[str, Any]:
    """Return what all processes continue from; the chief calls this.

    Args:
        parts: The parts of the trial's context.
        callbacks: The chief's, by name.
    """
    trained = parts.trained
    content: dict[str, Any] = {
        MODELS: [model.state_dict() for model in trained.models],
        OPTIMIZERS: [optimizer.state_dict() for optimizer in trained.optimizers],
        SCHEDULERS: [scheduler.state_dict() for scheduler in trained.lr_schedulers],
        CALLBACKS: {name: callback.state_dict() for name, callback in callbacks.items()},
        BESIDE_WEIGHTS: [_beside_weights(model) for model in trained.models],
    }
    if trained.scaler is not None:
        content[SCALER] = trained.scaler.state_dict()
    return content


def capture_process(parts: ContextParts) -> dict[str, Any]:
    """Return what this process continues from.

    Args:
        parts: The parts of the trial's context.
    """
    content: dict[str, Any] = {RNG: rng_states.capture(parts.device)}
    gradients = parts.trained.unfinished_gradients()
    if any(gradients):
        content[GRADIENTS] = gradients
    if parts.num_processes > 1 and parts.trained.gradients_in_progress():
        content[BUFFERS] = [dict(model.named_buffers()) for model in parts.trained.models]
    return content


def require_fit(parts: ContextParts, content: Mapping[str, Any], own: Mapping[str, Any], saved: SavedTrial) -> None:
    """Raise an error for contents that this trial cannot continue from; nothing is changed.

    Args:
        parts: The parts of the trial's context.
        content: What all processes continue from.
        own: What this process continues from.
        saved: What the checkpoint tells of itself.

    Raises:
        InvalidCheckpointException: The checkpoint belongs to another trial, or the trial was changed.
    """
    trained = parts.trained
    for model, weights in zip(trained.models, _states(content, MODELS, trained.models, saved), strict=True):
        _require_weights(model, weights, saved)
    for number, (optimizer, state) in enumerate(
        zip(trained.optimizers, _states(content, OPTIMIZERS, trained.optimizers, saved), strict=True)
    ):
        _require_no_misfit(f"optimizer {number}", optimizer, state, saved)
    for number, (wrapped, state) in enumerate(
        zip(trained.lr_schedulers, _states(content, SCHEDULERS, trained.lr_schedulers, saved), strict=True)
    ):
        _require_no_misfit(f"LR scheduler {number}", wrapped.scheduler, state, saved)
    _require_same_groups(parts, own, saved)
    if RNG in own:
        try:
            rng_states.check(own[RNG])
        except ValueError as error:
            raise _unfit(saved, f"rng_state: {error}", "the RNG states of a process") from error


def take_over(
    parts: ContextParts,
    callbacks: Mapping[str, PyTorchCallback],
    content: Mapping[str, Any],
    own: Mapping[str, Any],
    saved: SavedTrial,
) -> None:
    """Load what was found to fit; where loading fails nevertheless, undo what was loaded.

    Args:
        parts: The parts of the trial's context.
        callbacks: The callbacks of this process, by name.
        content: What all processes continue from.
        own: What this process continues from.
        saved: What the checkpoint tells of itself.

    Raises:
        InvalidCheckpointException: A model does not take its extra state.
    """
    trained = parts.trained
    with AllOrNothing() as loading:
        _load_models(trained.models, content, loading)
        for optimizer, state in zip(trained.optimizers, content[OPTIMIZERS], strict=True):
            loading.load_optimizer(optimizer, copy.deepcopy(state), _explain(optimizer, saved))
        for wrapped, state in zip(trained.lr_schedulers, content[SCHEDULERS], strict=True):
            loading.load(wrapped.scheduler, copy.deepcopy(state), _explain(wrapped.scheduler, saved))
        _load_scaler(parts, content)
        _load_process(parts, own)
        _load_callbacks(parts, callbacks, content)
    # Last, so that what callbacks draw when they load is drawn before, and not missing afterwards.
    if RNG in own:
        rng_states.restore(own[RNG], parts.device)
    else:
        _warn(parts, "The checkpoint has no RNG state, so the current one is kept.")


def load_weights_into(models: Sequence[nn.Module], content: Mapping[str, Any], saved: SavedTrial) -> None:
    """Load the weights of all models, and nothing else.

    Args:
        models: The models that are wrapped.
        content: What the checkpoint holds.
        saved: What it tells of itself.

    Raises:
        InvalidCheckpointException: They belong to other models. Nothing was loaded.
    """
    weights = _states(content, MODELS, models, saved)
    for model, state in zip(models, weights, strict=True):
        _require_weights(model, state, saved)
    with AllOrNothing() as loading:
        _load_models(models, {MODELS: weights}, loading)


def fitted_weights(model: nn.Module, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return weights under the names that a model has for them, where the names differ only by a wrapper.

    Args:
        model: The model, which may be compiled.
        weights: The saved weights, even of a model within ``DistributedDataParallel``.

    Example:
        >>> fitted_weights(nn.Linear(1, 1, bias=False), {"module.weight": 1})
        {'weight': 1}
    """
    own = list(model.state_dict())
    if set(own) == set(weights):
        return dict(weights)
    plain = {_plain_name(name): value for name, value in weights.items()}
    if len(plain) < len(weights) or set(plain) != {_plain_name(name) for name in own}:
        return dict(weights)
    return {name: plain[_plain_name(name)] for name in own}


def _plain_name(name: str) -> str:
    parts = [part for part in name.split(".") if part != COMPILED]
    while len(parts) > 1 and parts[0] == _DISTRIBUTED:
        del parts[0]
    return ".".join(parts)


def _beside_weights(model: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in SavedModel.of(model)._asdict().items() if name != "weights"}


def _states(
    content: Mapping[str, Any], name: str, targets: Sequence[object], saved: SavedTrial
) -> list[dict[str, Any]]:
    """The states of that name, one for each target."""
    found: object = content.get(name)
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in cast("list[object]", found)):
        raise _unfit(saved, f"{name} is not a list of states", "the content of a trial's checkpoint")
    states = cast("list[dict[str, Any]]", found)
    if len(states) != len(targets):
        kinds = ", ".join(type(one).__name__ for one in targets) or "none"
        raise _unfit(saved, f"{name} of {len(states)} objects", f"of {len(targets)}, as the trial has: {kinds}")
    return states


def _require_weights(model: nn.Module, weights: Mapping[str, Any], saved: SavedTrial) -> None:
    found = misfit(model, fitted_weights(model, weights), source="checkpoint")
    if found is not None:
        raise _unfit(saved, f"{type(model).__name__} with {found}", "the names and shapes of the model")


def _require_no_misfit(name: str, target: object, state: Mapping[str, Any], saved: SavedTrial) -> None:
    found = misfit(target, state)
    if found is not None:
        raise _unfit(saved, f"{name}: {found}", f"a state of {type(target).__name__}, as the trial has")


def _require_same_groups(parts: ContextParts, own: Mapping[str, Any], saved: SavedTrial) -> None:
    """Gradients of an unfinished group can only be finished in a group of the same size."""
    frequency = saved.aggregation_frequency
    if GRADIENTS in own and frequency is not None and frequency != parts.aggregation_frequency:
        raise InvalidCheckpointException(
            "The checkpoint was saved in the middle of an aggregation group. Nothing was loaded.",
            given=f"{saved.path}, saved with aggregation_frequency={frequency}, and now {parts.aggregation_frequency}",
            do=f"Pass init(aggregation_frequency={frequency}), or fit(warm_start=...) to start over with its weights.",
        )


def _load_models(models: Sequence[nn.Module], content: Mapping[str, Any], loading: AllOrNothing) -> None:
    beside: list[dict[str, Any]] = content.get(BESIDE_WEIGHTS, [{}] * len(models))
    saved: dict[str, SavedModel] = {}
    for number, (model, weights, rest) in enumerate(zip(models, content[MODELS], beside, strict=True)):
        loading.keep_weights(model)
        others, trainable = rest.get("other_buffers", {}), rest.get("trainable", {})
        saved[str(number)] = SavedModel(fitted_weights(model, weights), others, trainable)
    loading.load_models({str(number): model for number, model in enumerate(models)}, saved)


def _load_scaler(parts: ContextParts, content: Mapping[str, Any]) -> None:
    scaler, state = parts.trained.scaler, content.get(SCALER)
    if scaler is None and state is not None:
        _warn(parts, "The checkpoint has the state of a gradient scaler, but the trial has no scaler to load it into.")
    elif scaler is not None and state:
        scaler.load_state_dict(copy.deepcopy(state))
    elif scaler is not None and (state is None or scaler.is_enabled()):  # that of a disabled one is empty
        _warn(parts, "The checkpoint has no state of a gradient scaler: the scaler of the trial starts from scratch.")


def _load_process(parts: ContextParts, own: Mapping[str, Any]) -> None:
    if BUFFERS in own:
        for model, saved in zip(parts.trained.models, own[BUFFERS], strict=True):
            _copy_buffers(dict(model.named_buffers()), saved)
    if GRADIENTS in own:
        parts.trained.load_unfinished_gradients(own[GRADIENTS])


def _copy_buffers(buffers: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in saved.items():
            if name in buffers and buffers[name].shape == value.shape:
                buffers[name].copy_(value)


def _load_callbacks(parts: ContextParts, callbacks: Mapping[str, PyTorchCallback], content: Mapping[str, Any]) -> None:
    states: Mapping[str, Any] = content.get(CALLBACKS, {})
    for name, callback in callbacks.items():
        if name in states:
            callback.load_state_dict(states[name])
        elif _overrides(type(callback).load_state_dict):
            _warn(parts, f"The checkpoint has no state of the callback {name!r}, which starts from scratch.")


def _overrides(load_state_dict: Callable[..., None]) -> bool:
    return load_state_dict is not PyTorchCallback.load_state_dict


def _warn(parts: ContextParts, message: str) -> None:
    if parts.rank == 0:
        warn_user(message)


def _explain(target: object, saved: SavedTrial) -> Callable[[str], CheckpointError]:
    return lambda found: _unfit(saved, f"{type(target).__name__}: {found}", "a state of the objects of the trial")


def _unfit(saved: SavedTrial, found: str, expected: str) -> InvalidCheckpointException:
    return InvalidCheckpointException(
        "The checkpoint does not fit the trial. Nothing was loaded.",
        given=f"{saved.path}: {found}",
        expected=expected,
        do="Make the trial as it was when the checkpoint was saved, or name a checkpoint of this trial.",
    )
