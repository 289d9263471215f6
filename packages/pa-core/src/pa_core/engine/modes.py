"""Training mode of models; scripts may keep parts of them in evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import nn

from pa_core._tensors import parameters_of_module
from pa_core.user_warnings import warn_user


def put_into_training(model: nn.Module) -> None:
    """Call ``model.train()``, but keep those parts in evaluation mode that a script put into this mode.

    A whole model in evaluation mode, for example after loading a pretrained model, is put into training mode as a
    whole.

    Args:
        model: The model.

    Example:
        >>> model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1).eval())
        >>> put_into_training(model)
        >>> model.training, model[1].training
        (True, False)
    """
    kept = [part for part in model.modules() if not part.training] if model.training else []
    model.train()
    for part in kept:
        part.training = False


def trained_in_evaluation_mode(models: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Return the parts in evaluation mode, with trainable parameters, of models in training mode.

    Args:
        models: The models by name.

    Returns:
        The outermost such parts, by the name of the model and their name in it.
    """
    return {
        f"{name}.{part_name}": part
        for name, model in models.items()
        if model.training
        for part_name, part in _outermost_in_evaluation(model)
        if any(parameter.requires_grad for parameter in parameters_of_module(part))
    }


def _outermost_in_evaluation(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, child in model.named_children():
        if not child.training:
            yield name, child
        else:
            yield from ((f"{name}.{inner}", part) for inner, part in _outermost_in_evaluation(child))


def warn_of_pretrained_parts(models: Mapping[str, nn.Module]) -> None:
    """Warn about parts that are trained without dropout because loading left them in evaluation mode.

    Args:
        models: The models by name.
    """
    for name, part in trained_in_evaluation_mode(models).items():
        if hasattr(part, "from_pretrained") and not any(inside.training for inside in part.modules()):
            warn_user(
                f"{name}, a {type(part).__name__}, is trained in evaluation mode, the mode after from_pretrained(): "
                "without dropout. Call train() on the whole model after creating it; or freeze the part with "
                "requires_grad_(False)."
            )
