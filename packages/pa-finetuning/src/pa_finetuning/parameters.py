"""Properties of a single parameter: whether it is frozen, and whether an optimizer holds it."""

from __future__ import annotations

from torch import Tensor, nn
from torch.optim import Optimizer


def can_have_gradients(parameter: nn.Parameter) -> bool:
    """Whether a parameter can be trained; the integers of quantized layers cannot."""
    return parameter.is_floating_point() or parameter.is_complex()


def is_frozen(parameter: nn.Parameter) -> bool:
    """Whether a parameter could be trained, and does not require a gradient."""
    return can_have_gradients(parameter) and not parameter.requires_grad


def held_by(optimizer: Optimizer) -> set[Tensor]:
    """Return all parameters of an optimizer."""
    return {parameter for group in optimizer.param_groups for parameter in group["params"]}
