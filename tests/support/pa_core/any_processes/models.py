"""Small models of the layers that a configuration names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

__all__ = ["CLASSES", "FEATURES", "WORDS", "Network"]

WORDS, FEATURES, WIDTH, CLASSES = 30, 5, 24, 4


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=0.1, batch_first=True)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.attention(inputs, inputs, inputs, need_weights=False)[0]
        return inputs + outputs


class _ChannelsFirst(nn.Module):
    """Calls a layer with the features where convolutions expect them."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs.transpose(1, 2))
        return outputs.transpose(1, 2)


def _layer(name: str) -> nn.Module:
    if name == "linear":
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())
    if name == "attention":
        return _Attention()
    if name == "layer norm":
        return nn.LayerNorm(WIDTH)
    if name == "dropout":
        return nn.Dropout(0.2)
    if name == "convolution":
        return _ChannelsFirst(nn.Conv1d(WIDTH, WIDTH, kernel_size=3, padding=1))
    return _ChannelsFirst(nn.BatchNorm1d(WIDTH) if name == "batch norm" else nn.GroupNorm(3, WIDTH))


class Network(nn.Module):
    """Classifies sequences of tokens, or of vectors.

    Args:
        layers: The names of its layers but the first and the last one.
        has_embedding: Whether it takes tokens.
        has_frozen_layer: Whether the first layer is not trained.
    """

    def __init__(self, layers: Sequence[str], *, has_embedding: bool, has_frozen_layer: bool) -> None:
        super().__init__()
        self.first = nn.Embedding(WORDS, WIDTH) if has_embedding else nn.Linear(FEATURES, WIDTH)
        self.first.requires_grad_(not has_frozen_layer)
        self.layers = nn.Sequential(*map(_layer, layers))
        self.last = nn.Linear(WIDTH, CLASSES)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(torch.tanh(self.layers(self.first(inputs))).mean(1))
        return outputs
