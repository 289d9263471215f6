"""Everything about a module that training changes: weights, buffers, and which parameters are trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn

from pa_core.errors import CheckpointError
from pa_core.state_dicts import differences_of_weights, list_differences

__all__ = ["capture_model", "model_differs", "named_parameters", "restore_models"]


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


def model_differs(model: nn.Module, captured: Mapping[str, Any]) -> bool:
    """Whether some weights of a model are not in what ``capture_model`` returned, or the other way round."""
    return bool(_misfits(model, captured))


def restore_models(
    models: Mapping[str, nn.Module], captured: Mapping[str, Mapping[str, Any]], *, partly: bool = False
) -> None:
    """Restore modules to what ``capture_model`` returned of each.

    Args:
        models: The models without wrappers, by name.
        captured: What was captured, by name.
        partly: Whether weights that do not match are left as they are, instead of refused. So are models without a
            state.

    Raises:
        CheckpointError: The weights are those of other models; nothing was changed.
    """
    if not partly:
        _require_same_models(models, captured)
    for name, model in models.items():
        if name in captured:
            _restore(model, captured[name])


def _restore(model: nn.Module, captured: Mapping[str, Any]) -> None:
    misfits = _misfits(model, captured)
    matching = {name: value for name, value in captured["weights"].items() if name not in misfits}
    model.load_state_dict(matching, strict=not misfits)
    buffers = dict(model.named_buffers())
    with torch.no_grad():
        for name, saved in captured["other_buffers"].items():
            if name in buffers and buffers[name].shape == saved.shape:
                buffers[name].copy_(saved)
    trainable = captured["trainable"]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trainable.get(name, parameter.requires_grad))


def _require_same_models(models: Mapping[str, nn.Module], captured: Mapping[str, Mapping[str, Any]]) -> None:
    if models.keys() != captured.keys():
        raise _other_model(f"the models {', '.join(models)}", f"the models {', '.join(captured)}")
    for name, model in models.items():
        misfits = _misfits(model, captured[name])
        if misfits:
            kind = type(model).__name__ if len(models) == 1 else f"{name}, of type {type(model).__name__}"
            raise _other_model(f"{kind}: {list_differences(misfits.values())}", "the model of the run that was saved")


def _other_model(given: str, expected: str) -> CheckpointError:
    return CheckpointError(
        "The training state is that of another model.",
        given=given,
        expected=expected,
        do='Make the model as that run did. Or take over what fits: resume_allow=("model",).',
    )


def _misfits(model: nn.Module, captured: Mapping[str, Any]) -> dict[str, str]:
    return differences_of_weights(model, cast("dict[str, Any]", captured["weights"]), "state")


def named_parameters(models: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    """Return the parameters of all models by name, also those that have several names.

    Args:
        models: The models without wrappers. Of a single one the names are its own; of several, each begins with the
            name of its model.

    Example:
        >>> generator, discriminator = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        >>> list(named_parameters({"model": generator}))
        ['weight']
        >>> list(named_parameters({"generator": generator, "discriminator": discriminator}))
        ['generator.weight', 'discriminator.weight']
    """
    if len(models) == 1:
        (model,) = models.values()
        return dict(model.named_parameters(remove_duplicate=False))
    return {
        f"{name}.{inner}": parameter
        for name, model in models.items()
        for inner, parameter in model.named_parameters(remove_duplicate=False)
    }
