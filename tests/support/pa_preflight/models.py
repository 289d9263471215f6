"""Models of the corpus that are more than a sequence of layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.pa_preflight.scripts import Net


def recurrent(
    recurrence: nn.GRU | nn.LSTM, outputs: int, vocabulary: int | None = None, take: int | None = None
) -> Net:
    """A recurrent layer, and a linear one of the mean of its states, or of the state at one step."""

    def compute(net: Any, inputs: Tensor) -> Tensor:
        states, _ = net.recurrence(net.embedding(inputs))
        result: Tensor = net.head(states.mean(dim=1) if take is None else states[:, take])
        return result

    embedding = nn.Identity() if vocabulary is None else nn.Embedding(vocabulary, recurrence.input_size)
    return Net(compute, embedding=embedding, recurrence=recurrence, head=nn.Linear(recurrence.hidden_size, outputs))


def encoder_layer(dropout: float = 0.0, *, batch_first: bool = True) -> nn.TransformerEncoderLayer:
    """A small layer of a transformer."""
    return nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, dropout=dropout, batch_first=batch_first)


def text_classifier() -> nn.Sequential:
    """A transformer encoder over tokens, whose mean is classified."""
    encoder = nn.TransformerEncoder(encoder_layer(0.1), 2, enable_nested_tensor=False)
    mean = Net(lambda net, hidden: hidden.mean(dim=1))
    return nn.Sequential(nn.Embedding(20, 16), encoder, mean, nn.Linear(16, 3))


def language_model(*, is_tied: bool = False) -> Net:
    """Predicts the next token from the tokens so far; the weights of embedding and head may be tied."""
    embedding, recurrence = nn.Embedding(20, 16), nn.GRU(16, 16, batch_first=True)
    head = nn.Linear(16, 20, bias=False)
    if is_tied:
        embedding.weight = head.weight
    return Net(
        lambda net, tokens: net.head(net.recurrence(net.embedding(tokens))[0]),
        embedding=embedding,
        recurrence=recurrence,
        head=head,
    )


def autoencoder(noise: float = 0.0) -> Net:
    """Squeezes vectors through a few numbers; the noise that it adds in training makes it a denoising one."""

    def compute(net: Any, inputs: Tensor) -> Tensor:
        noisy = inputs + noise * torch.randn_like(inputs) if net.training else inputs
        outputs: Tensor = net.decoder(net.encoder(noisy))
        return outputs

    encoder = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 4))
    return Net(compute, encoder=encoder, decoder=nn.Sequential(nn.Linear(4, 32), nn.GELU(), nn.Linear(32, 12)))


def two_towers() -> Net:
    """The features of two views of a sample, each of length 1."""

    def compute(net: Any, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        return functional.normalize(net.left(left), dim=1), functional.normalize(net.right(right), dim=1)

    left, right = (nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(2))
    return Net(compute, left=left, right=right)


def unet() -> Net:
    """Classifies pixels with one level of down- and upsampling, and a connection that skips it."""

    def compute(net: Any, images: Tensor) -> Tensor:
        fine = net.down(images)
        logits: Tensor = net.head(torch.cat([fine, net.middle(fine)], dim=1))
        return logits

    return Net(
        compute,
        down=nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        middle=nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2)),
        head=nn.Conv2d(24, 2, 1),
    )


def in_order(count: int, outputs: int = 4) -> Net:
    """Some hidden layers of a list, one after the other, and a last one."""

    def compute(net: Any, inputs: Tensor) -> Tensor:
        for one in net.layers[:count]:
            inputs = one(inputs).relu()
        logits: Tensor = net.head(inputs)
        return logits

    return Net(compute, layers=nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), head=nn.Linear(8, outputs))
