"""A ResNet-50 and a GPT-2 in plain torch, with the sizes of their papers unless told otherwise."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

__all__ = ["GPT2", "Perceptron", "ResNet50", "TokenLoss"]


class Perceptron(nn.Sequential):
    """A network of which a step is over before Python has prepared the next one."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut; the middle one may halve the image."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    @override
    def forward(self, image: Tensor) -> Tensor:
        return functional.relu(self.body(image) + self.shortcut(image))


class ResNet50(nn.Module):
    """ResNet-50 of images of bytes, in channels-last layout.

    Args:
        width: Channels of the first stage.
        classes: The number of logits.
    """

    def __init__(self, width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        stem = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
        blocks: list[nn.Module] = []
        inputs = width
        for stage, depth in enumerate((3, 4, 6, 3)):
            for number in range(depth):
                stride = 2 if number == 0 and stage > 0 else 1
                blocks.append(Bottleneck(inputs, width << stage, stride))
                inputs = 4 * (width << stage)
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]
        self.layers = nn.Sequential(*stem, *blocks, *head)
        self.layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]  # torch leaves this overload out

    @override
    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images.float().div(255).contiguous(memory_format=torch.channels_last))
        return logits


class Block(nn.Module):
    """Attention to what came before, and a layer with one hidden layer, each beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    @override
    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        parts = self.attend(self.norms[0](hidden)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        hidden = hidden + self.project(attended.transpose(1, 2).reshape(batch, length, width))
        fed: Tensor = hidden + self.feed(self.norms[1](hidden))
        return fed


class GPT2(nn.Module):
    """GPT-2 small, without dropout; the embedding of tokens is the head too.

    Args:
        vocabulary: The number of tokens.
        context: The length of the longest text.
        width: The size of a token between the blocks.
        depth: The number of blocks.
    """

    def __init__(self, vocabulary: int = 50257, context: int = 1024, width: int = 768, depth: int = 12) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(width, heads=max(1, width // 64)) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        return functional.linear(self.norm(hidden), self.tokens.weight)


class TokenLoss(nn.Module):
    """The cross-entropy of each token, of logits of shape (batch, length, vocabulary)."""

    @override
    def forward(self, logits: Tensor, tokens: Tensor) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
