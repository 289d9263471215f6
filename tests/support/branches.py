"""A model whose passes use some of its layers, to exchange gradients of."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

BUCKETS = [1, 200, 1 << 20]
"""Sizes in bytes: one parameter in each, some, and all in one."""


class Branches(nn.Module):
    """Layers of different types and layouts; a pass uses those that it is told to use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 6)
        convolution = nn.Conv2d(2, 3, 2)
        convolution.weight.data = convolution.weight.data.to(memory_format=torch.channels_last)
        self.image = nn.Sequential(convolution, nn.BatchNorm2d(3))
        self.exact = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)).double()
        self.rough = nn.Linear(4, 5).bfloat16()
        self.words = nn.Embedding(5, 3, sparse=True)
        self.unused = nn.Linear(2, 2)
        self.mask: Tensor
        self.register_buffer("mask", torch.tensor([0.0, -math.inf, math.nan, -0.5]))
        self.lowest: Tensor
        self.register_buffer("lowest", torch.tensor(math.inf))

    def loss(self, inputs: Tensor, parts: Iterable[str]) -> Tensor:
        """The loss of some of the layers."""
        self.lowest.copy_(torch.minimum(self.lowest, inputs.min()))
        given = {
            "first": inputs,
            "image": inputs.view(1, 2, -1, 2),
            "exact": inputs.double(),
            "rough": inputs.bfloat16(),
            "words": inputs[:, 0].abs().long().clamp(max=4),
        }
        outputs: list[Tensor] = [self.get_submodule(part)(given[part]) for part in parts]
        return torch.stack([output.square().mean().double() for output in outputs]).sum()
