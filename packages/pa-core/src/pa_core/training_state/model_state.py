"""Everything about a module that training changes: weights, buffers, and which parameters are trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from pa_core.errors import CheckpointError

__all__ = ["capture_model", "differences_of_weights", "restore_model"]

_SHOWN_DIFFERENCES = 4


def capture_model(model: nn.Module) -> dict[str, Any]:
    """Return the weights, the buffers that a state dict leaves out, and which parameters are trained.

    Args:
        model: The model without wrappers, whose keys are the plain ones.

    Example:
        >>> import torch
        >>> sorted(capture_model(torch.nn.Linear(1, 1)))
        ['other_buffers', 'trainable', 'weights']
    """
    weights = model.state_dict()
    return {
        "weights": dict(weights),
        "other_buffers": {name: buffer for name, buffer in model.named_buffers() if name not in weights},
        "trainable": {name: parameter.requires_grad for name, parameter in model.named_parameters()},
    }


def restore_model(model: nn.Module, captured: Mapping[str, Any], *, partly: bool = False) -> None:
    """Put a module back to what ``capture_model`` returned.

    Args:
        model: The model without wrappers.
        captured: What ``capture_model`` returned.
        partly: Whether weights that do not fit are left as they are, instead of refused.

    Raises:
        CheckpointError: The weights are those of another model; nothing was changed.
    """
    weights = cast("dict[str, Any]", captured["weights"])
    misfits = differences_of_weights(model, weights)
    if misfits and not partly:
        shown = "; ".join(list(misfits.values())[:_SHOWN_DIFFERENCES])
        more = f"; and {len(misfits) - _SHOWN_DIFFERENCES} more" if len(misfits) > _SHOWN_DIFFERENCES else ""
        raise CheckpointError(
            "The training state is that of another model.",
            given=f"{type(model).__name__}: {shown}{more}",
            expected="the model of the run that was saved",
            do='Make the model as that run did. Or take over what fits: resume_allow=("model",).',
        )
    model.load_state_dict({name: value for name, value in weights.items() if name not in misfits}, strict=not misfits)
    buffers = dict(model.named_buffers())
    with torch.no_grad():
        for name, saved in captured["other_buffers"].items():
            if name in buffers and buffers[name].shape == saved.shape:
                buffers[name].copy_(saved)
    trainable = captured["trainable"]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trainable.get(name, parameter.requires_grad))


def differences_of_weights(model: nn.Module, weights: Mapping[str, Any]) -> dict[str, str]:
    """Say, by name, which weights of a model and of a state do not fit each other; empty if all do."""
    own = model.state_dict()
    misfits: dict[str, str] = {}
    for name in sorted(own.keys() | weights.keys()):
        if name not in weights:
            misfits[name] = f"the state has no {name}"
        elif name not in own:
            misfits[name] = f"the state has {name} in addition"
        elif _shape(own[name]) != _shape(weights[name]):
            misfits[name] = f"{name} has the shape {_shape(own[name])}, in the state {_shape(weights[name])}"
    return misfits


def _shape(value: object) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, Tensor) else None
