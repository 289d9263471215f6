"""The networks of the tasks, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

__all__ = ["NextToken", "ResNet", "TokenLoss", "Transformer", "layers_of"]


class Transformer(nn.Module):
    """Predicts the next token."""

    def __init__(
        self,
        vocabulary: int = 256,
        width: int = 128,
        length: int = 64,
        depth: int = 2,
        heads: int = 4,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=dropout, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of shape (batch, length, vocabulary)."""
        hidden = self.layers(self.tokens(tokens) + self.places, mask=self.mask, is_causal=True)
        logits: Tensor = self.head(hidden)
        return logits


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a transformer, which are its blocks when it is sharded."""
    return [module for module in model.modules() if isinstance(module, nn.TransformerEncoderLayer)]


class NextToken(nn.Module):
    """Predicts the next token from those before, one after the other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 256)

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of shape (batch, length, vocabulary)."""
        logits: Tensor = self.head(self.recurrent(self.tokens(tokens))[0])
        return logits


class TokenLoss(nn.Module):
    """The cross-entropy of each token, of logits of shape (batch, length, vocabulary)."""

    @override
    def forward(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Return the mean over all tokens."""
        return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class Residual(nn.Module):
    """Convolutions beside a shortcut; the last but one may halve the image."""

    def __init__(self, inputs: int, convolutions: Sequence[tuple[int, int]], stride: int) -> None:
        super().__init__()
        channels, layers = inputs, list[nn.Module]()
        for left, (kernel, outputs) in zip(reversed(range(len(convolutions))), convolutions, strict=True):
            convolution = nn.Conv2d(channels, outputs, kernel, stride if left == 1 else 1, kernel // 2, bias=False)
            layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
            channels = outputs
        self.body = nn.Sequential(*layers[:-1])
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    @override
    def forward(self, image: Tensor) -> Tensor:
        return functional.relu(self.body(image) + self.shortcut(image))


class ResNet(nn.Module):
    """A residual network for ImageNet.

    Args:
        depths: The number of blocks in each stage.
        bottleneck: Whether a block has three convolutions, and four times as many outputs as the middle one.
        width: Channels of the first stage.
    """

    def __init__(self, depths: Sequence[int], *, bottleneck: bool, width: int = 64) -> None:
        super().__init__()
        stem = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
        inputs, blocks = width, list[nn.Module]()
        for stage, depth in enumerate(depths):
            size = width << stage
            convolutions = [(1, size), (3, size), (1, 4 * size)] if bottleneck else [(3, size), (3, size)]
            for number in range(depth):
                blocks.append(Residual(inputs, convolutions, 2 if number == 0 and stage > 0 else 1))
                inputs = convolutions[-1][1]
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000)]
        self.layers = nn.Sequential(*stem, *blocks, *head)

    @override
    def forward(self, images: Tensor) -> Tensor:
        """Return logits of images of bytes."""
        logits: Tensor = self.layers(images.float().div(255).contiguous(memory_format=torch.channels_last))
        return logits
