"""A small convolutional network, and what can be seen of a model from outside."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import override


class ConvNet(nn.Module):
    """Three layer groups, eleven layers, with batch norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5))
        self.body = nn.Sequential(
            nn.Conv2d(4, 4, 3), nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.head = nn.Linear(4, 2)

    @override
    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of a batch of images."""
        scores: Tensor = self.head(self.body(self.stem(images)))
        return scores


class WithTokens(nn.Module):
    """Parameters on the model itself, and a weight that the first and the last group share."""

    def __init__(self) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(1, 3))
        self.embedding = nn.Embedding(5, 3)
        self.body = nn.Linear(3, 3)
        self.head = nn.Linear(3, 5)
        self.head.weight = self.embedding.weight


def changed(before: dict[str, Tensor], model: nn.Module) -> set[str]:
    """The entries of the state dict that are not bit-identical to those before."""
    return {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}


def trainable(model: nn.Module) -> set[str]:
    """The names of the parameters that are not frozen."""
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def modes(model: nn.Module) -> dict[str, bool]:
    """Whether each module is in training mode."""
    return {name: module.training for name, module in model.named_modules()}


def entries_below(model: nn.Module, prefix: str) -> set[str]:
    """The entries of the state dict below a module."""
    return {name for name in model.state_dict() if name.startswith(f"{prefix}.")}
