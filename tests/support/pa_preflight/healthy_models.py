"""Models of the healthy scripts that are more than a sequence of layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override


class TextClassifier(nn.Module):
    """A transformer encoder over tokens, whose mean is classified."""

    def __init__(self, vocabulary: int = 20, classes: int = 3, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 2, dim_feedforward=32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(self.embedding(tokens)).mean(dim=1))
        return logits


class PaddedTextClassifier(nn.Module):
    """The mean of the embeddings of tokens that are not padding, which is token 0."""

    def __init__(self, vocabulary: int = 20, classes: int = 3, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.head = nn.Linear(width, classes)

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        lengths = (tokens != 0).sum(dim=1, keepdim=True)
        logits: Tensor = self.head(self.embedding(tokens).sum(dim=1) / lengths)
        return logits


class Recurrent(nn.Module):
    """A recurrent layer, whose last states are the features of a linear layer."""

    def __init__(self, layer: nn.GRU | nn.LSTM, outputs: int, vocabulary: int | None = None) -> None:
        super().__init__()
        self.embedding = nn.Identity() if vocabulary is None else nn.Embedding(vocabulary, layer.input_size)
        self.layer = layer
        self.head = nn.Linear(layer.hidden_size, outputs)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        states, _ = self.layer(self.embedding(inputs))
        outputs: Tensor = self.head(states.mean(dim=1))
        return outputs


class LanguageModel(nn.Module):
    """Predicts the next token from the tokens so far; the weights of embedding and head may be tied."""

    def __init__(self, vocabulary: int = 20, width: int = 16, *, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.recurrence = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.embedding.weight = self.head.weight

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.recurrence(self.embedding(tokens))
        logits: Tensor = self.head(states)
        return logits


class CausalTransformer(nn.Module):
    """Predicts the next token with a transformer layer and a causal mask."""

    def __init__(self, vocabulary: int = 20, length: int = 11, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.layer = nn.TransformerEncoderLayer(width, 2, dim_feedforward=32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, vocabulary)
        self.mask: Tensor
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens) + self.positions
        logits: Tensor = self.head(self.layer(hidden, src_mask=self.mask, is_causal=True))
        return logits


class ReturnsLoss(nn.Module):
    """Two inputs by name; returns its loss where there are labels, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.of_tokens = nn.Embedding(20, 16)
        self.of_features = nn.Linear(8, 16)
        self.head = nn.Linear(16, 3)

    @override
    def forward(self, tokens: Tensor, features: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        hidden = self.of_tokens(tokens).mean(dim=1) + self.of_features(features)
        logits = self.head(hidden.relu())
        return (
            {"logits": logits}
            if labels is None
            else {"loss": functional.cross_entropy(logits, labels), "logits": logits}
        )


class Siamese(nn.Module):
    """The similarity of two inputs, of which one network makes features."""

    def __init__(self, features: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, 8))
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.bias = nn.Parameter(torch.tensor(0.0))

    @override
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        distance: Tensor = (self.encoder(left) - self.encoder(right)).square().mean(dim=1)
        return self.bias - self.scale * distance


class TwoTowers(nn.Module):
    """The features of two views of a sample, each of length 1."""

    def __init__(self, features: int = 8) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, 16))
        self.right = nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, 16))

    @override
    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        return functional.normalize(self.left(left), dim=1), functional.normalize(self.right(right), dim=1)


class Autoencoder(nn.Module):
    """Squeezes vectors through a few numbers; the noise that it adds in training makes it a denoising one."""

    def __init__(self, features: int = 12, code: int = 4, noise: float = 0.0) -> None:
        super().__init__()
        self.noise = noise
        self.encoder = nn.Sequential(nn.Linear(features, 32), nn.GELU(), nn.Linear(32, code))
        self.decoder = nn.Sequential(nn.Linear(code, 32), nn.GELU(), nn.Linear(32, features))

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        noisy = inputs + self.noise * torch.randn_like(inputs) if self.training else inputs
        outputs: Tensor = self.decoder(self.encoder(noisy))
        return outputs


class Residual(nn.Module):
    """A pre-activation residual block with GroupNorm and dropout."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.GroupNorm(2, channels), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1), nn.Dropout2d(0.1)
        )

    @override
    def forward(self, images: Tensor) -> Tensor:
        changes: Tensor = self.layers(images)
        return images + changes


class Unet(nn.Module):
    """Classifies pixels with one level of down- and upsampling, and a connection that skips it."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.middle = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2)
        )
        self.head = nn.Conv2d(24, classes, 1)

    @override
    def forward(self, images: Tensor) -> Tensor:
        fine = self.down(images)
        logits: Tensor = self.head(torch.cat([fine, self.middle(fine)], dim=1))
        return logits
