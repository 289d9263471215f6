"""Models whose averages are easy to tell, and what tests of averages look at."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Tied(nn.Module):
    """An embedding and a head that share their weight, and a mask with infinities."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 2)
        self.head = nn.Linear(2, 3, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.full((2, 2), -math.inf).triu(1))


def set_all(model: nn.Module, value: float) -> None:
    """Give each parameter and each floating-point buffer one value."""
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point():
            nn.init.constant_(tensor, value)


def values(model: nn.Module) -> dict[str, Tensor]:
    """A copy of all tensors of the state dict."""
    return {name: value.clone() for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def all_equal(model: nn.Module, value: float) -> bool:
    """Whether each element of each tensor has the one value."""
    return all(bool((tensor == value).all()) for tensor in values(model).values())
