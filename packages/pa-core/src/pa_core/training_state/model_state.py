"""Everything about a module that training changes: weights, buffers, and which parameters are trained."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pa_checkpoint import StoredTensor
from pa_core.errors import CheckpointError
from pa_core.sharded_tensors import is_sharded
from pa_core.state_dicts import differences_of_weights, list_differences

__all__ = [
    "SavedModel",
    "capture_model",
    "model_differs",
    "named_parameters",
    "require_same_models",
    "restore_models",
]


@dataclass(frozen=True, slots=True)
class SavedModel:
    """What ``capture_model`` returned, read from a training state.

    Attributes:
        weights: The state dict.
        other_buffers: The buffers that a state dict leaves out, by name.
        trainable: Whether each parameter is trained, by name.
    """

    weights: dict[str, Any]
    other_buffers: Mapping[str, Tensor | StoredTensor]
    trainable: dict[str, bool]


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


def model_differs(model: nn.Module, saved: SavedModel) -> bool:
    """Whether some weights of a model are not in what was saved, or the other way round."""
    return bool(differences_of_weights(model, saved.weights, "state"))


def require_same_models(models: Mapping[str, nn.Module], saved: Mapping[str, SavedModel]) -> None:
    """Raise an error for anything that was saved of other models.

    Args:
        models: The models without wrappers, by name.
        saved: What was saved, by name.

    Raises:
        CheckpointError: It is not of these.
    """
    if models.keys() != saved.keys():
        raise _other_model(f"the models {', '.join(models)}", f"the models {', '.join(saved)}")
    for name, model in models.items():
        misfits = differences_of_weights(model, saved[name].weights, "state")
        if misfits:
            kind = type(model).__name__ if len(models) == 1 else f"{name}, of type {type(model).__name__}"
            raise _other_model(f"{kind}: {list_differences(misfits.values())}", "the model of the run that was saved")


def restore_models(models: Mapping[str, nn.Module], saved: Mapping[str, SavedModel]) -> None:
    """Restore modules to what was saved of each; weights that do not match, and models without a state, stay.

    What modules keep as extra states is loaded first: it alone may raise an error, and nothing is changed then.

    Args:
        models: The models without wrappers, by name.
        saved: What was saved, by name.

    Raises:
        CheckpointError: A module does not take its extra state.
    """
    restored = [
        (model, saved[name], differences_of_weights(model, saved[name].weights, "state"))
        for name, model in models.items()
        if name in saved
    ]
    weights = [{name: value for name, value in one.weights.items() if name not in other} for _, one, other in restored]
    _load_extra_states([model for model, _, _ in restored], weights)
    for (model, one, misfits), matching in zip(restored, weights, strict=True):
        model.load_state_dict(_read(matching, model), strict=not misfits)
        _restore_rest(model, one)


def _read(weights: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """Read weights that stay on disk, or that this process has only pieces of, into the memory of the model itself.

    Its ``load_state_dict`` then gets them as those that it has already, in any form in which it keeps them.
    """
    own, read = model.state_dict(), dict(weights)
    for name, value in weights.items():
        if name.endswith(_EXTRA_STATE):
            read[name] = StoredTensor.resolve(value)
        elif isinstance(value, StoredTensor) or is_sharded(own[name]):
            StoredTensor.of(value).read_into(own[name])
            read[name] = own[name]
    return read


def _restore_rest(model: nn.Module, saved: SavedModel) -> None:
    """Restore what a state dict leaves out."""
    buffers = dict(model.named_buffers())
    for name, buffer in saved.other_buffers.items():
        if name in buffers and buffers[name].shape == buffer.shape:
            StoredTensor.of(buffer).read_into(buffers[name])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(saved.trainable.get(name, parameter.requires_grad))


def _load_extra_states(models: Sequence[nn.Module], weights: Sequence[Mapping[str, Any]]) -> None:
    """Load what modules have returned from ``get_extra_state``: all of it or, if one raises an error, none."""
    before: list[tuple[nn.Module, dict[str, Any]]] = []
    for model, of_model in zip(models, weights, strict=True):
        extra = {name: StoredTensor.resolve(value) for name, value in of_model.items() if name.endswith(_EXTRA_STATE)}
        if not extra:
            continue
        own = model.state_dict()
        before.append((model, {name: copy.deepcopy(own[name]) for name in extra}))
        try:
            model.load_state_dict(extra, strict=False)
        except Exception as error:
            for changed, extra_before in reversed(before):
                with suppress(Exception):  # what the module has said of the state that it refuses tells more
                    changed.load_state_dict(extra_before, strict=False)
            raise _refused_extra_state(model, list(extra), error) from error


def _refused_extra_state(model: nn.Module, names: list[str], error: Exception) -> CheckpointError:
    return CheckpointError(
        "A module does not take its extra state from the training state; no weight was loaded.",
        given=f"{', '.join(names)} of {type(model).__name__}: set_extra_state raised {type(error).__name__}: {error}",
        expected="what get_extra_state() of the module returned",
        do="Use another state, or look at set_extra_state() of the module.",
    )


def _other_model(given: str, expected: str) -> CheckpointError:
    return CheckpointError(
        "The training state belongs to another model.",
        given=given,
        expected=expected,
        do='Make the model as that run did. Or carry over what fits: resume_allow=("model",).',
    )


_EXTRA_STATE = "_extra_state"  # the last part of the name that torch gives it


def named_parameters(models: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    """Return the parameters of all models by name, including parameters that have several names.

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
