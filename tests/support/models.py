"""Looking at models."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def weights_of(model: nn.Module) -> Tensor:
    """A copy of all parameters of a model, as one vector."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
