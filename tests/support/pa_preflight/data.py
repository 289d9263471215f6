"""Data that can be learnt in a few steps, with inputs around zero and of unit size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset
from typing_extensions import override


def points(
    num_samples: int = 480,
    *,
    seed: int = 1,
    features: int = 8,
    classes: int = 4,
    scale: float = 1.0,
    shift: float = 0.0,
) -> TensorDataset:
    """Clusters in space, and the number of the cluster as the target; sets of different seeds have the same centres."""
    centres = torch.randn(classes, features, generator=_seeded(0))
    draws = _seeded(seed)
    targets = torch.randint(0, classes, (num_samples,), generator=draws)
    inputs = centres[targets] + 0.4 * torch.randn(num_samples, features, generator=draws)
    return TensorDataset(inputs * scale + shift, targets)


def lines(num_samples: int = 480, *, seed: int = 1, features: int = 6, outputs: int = 1) -> TensorDataset:
    """Standardised inputs, and standardised targets of shape ``(num_samples, outputs)`` that are linear in them."""
    weights = torch.randn(features, outputs, generator=_seeded(0))
    draws = _seeded(seed)
    inputs = torch.randn(num_samples, features, generator=draws)
    noise = 0.05 * torch.randn(num_samples, outputs, generator=draws)
    return TensorDataset(inputs, inputs @ (weights / weights.norm(dim=0)) + noise)


def labels_of_several(num_samples: int = 480, *, seed: int = 1, features: int = 8, labels: int = 5) -> TensorDataset:
    """Samples with several labels each: ones and zeros of dtype float32."""
    inputs, values = lines(num_samples, seed=seed, features=features, outputs=labels).tensors
    return TensorDataset(inputs, (values > 0).float())


def pictures(num_samples: int = 320, *, seed: int = 1, classes: int = 4, size: int = 8) -> TensorDataset:
    """Grey pictures in which one of four quarters is bright, and which one as the target."""
    draws = _seeded(seed)
    targets = torch.randint(0, classes, (num_samples,), generator=draws)
    images = 0.5 * torch.randn(num_samples, 1, size, size, generator=draws) - 0.5
    half = size // 2
    for index, target in enumerate(targets.tolist()):
        row, column = half * (target // 2), half * (target % 2)
        images[index, :, row : row + half, column : column + half] += 2
    return TensorDataset(images, targets)


def blobs(num_samples: int = 240, *, size: int = 12) -> tuple[Tensor, Tensor]:
    """Pictures of a square in one of three colours, with their channels last, and which colour it has."""
    draws = _seeded(1)
    colours = torch.randint(0, 3, (num_samples,), generator=draws)
    images = 0.1 * torch.randn(num_samples, size, size, 3, generator=draws)
    for image, colour, place in zip(
        images, colours, torch.randint(0, size - 5, (num_samples, 2), generator=draws), strict=True
    ):
        image[int(place[0]) : int(place[0]) + 5, int(place[1]) : int(place[1]) + 5, int(colour)] += 2
    return images, colours


def bytes_of(data: TensorDataset) -> TensorDataset:
    """The same pictures with brightness from 0 to 255, as files have it."""
    images, targets = data.tensors
    return TensorDataset(((images + 3) / 6 * 255).clamp(0, 255).round(), targets)


def masks(num_samples: int = 240, *, seed: int = 1, size: int = 8) -> TensorDataset:
    """Pictures, and for each pixel whether it belongs to the bright quarter."""
    images, quarters = pictures(num_samples, seed=seed, size=size).tensors
    half = size // 2
    targets = torch.zeros(num_samples, size, size, dtype=torch.long)
    for index, quarter in enumerate(quarters.tolist()):
        row, column = half * (quarter // 2), half * (quarter % 2)
        targets[index, row : row + half, column : column + half] = 1
    return TensorDataset(images, targets)


def texts(
    num_samples: int = 320, *, seed: int = 1, length: int = 12, classes: int = 3, tokens_of_class: int = 6
) -> TensorDataset:
    """Sequences of tokens from 1 on, 7 of 10 from the vocabulary of the class, which is the target."""
    draws = _seeded(seed)
    targets = torch.randint(0, classes, (num_samples,), generator=draws)
    own = torch.randint(0, tokens_of_class, (num_samples, length), generator=draws) + tokens_of_class * targets[:, None]
    others = torch.randint(0, classes * tokens_of_class, (num_samples, length), generator=draws)
    is_own = torch.rand(num_samples, length, generator=draws) < 0.7
    return TensorDataset(1 + torch.where(is_own, own, others), targets)


def walks(num_samples: int = 320, *, seed: int = 1, length: int = 10, features: int = 4) -> TensorDataset:
    """Sequences of standardised vectors, and the mean of their first feature as the target of shape (N, 1)."""
    inputs = torch.randn(num_samples, length, features, generator=_seeded(seed))
    return TensorDataset(inputs, inputs[:, :, :1].mean(dim=1) * length**0.5)


def sequences(*, labels_from: int) -> TensorDataset:
    """Ten steps of six numbers each, and three of four labels that follow from them, numbered from the first."""
    steps = torch.randn(320, 10, 6, generator=_seeded(1))
    return TensorDataset(steps, steps[:, 1::3, :4].argmax(dim=2) + labels_from)


def sorted_by_target(data: TensorDataset) -> TensorDataset:
    """The same samples, those of the first class first."""
    order = data.tensors[1].argsort(stable=True)
    return TensorDataset(*(tensor[order] for tensor in data.tensors))


class Shifted(Dataset[tuple[Tensor, Tensor]]):
    """Pictures that are moved by up to a pixel at random each time that they are read."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, target = self.data[index]
        return torch.roll(image, self.draw(), dims=(1, 2)), target

    def draw(self) -> tuple[int, int]:
        """By how many pixels, down and to the right."""
        down, right = torch.randint(-1, 2, (2,)).tolist()
        return down, right


class Named(Dataset[dict[str, Any]]):
    """Samples as dictionaries, under the names that the model's ``forward`` has for them."""

    def __init__(self, data: TensorDataset, *names: str) -> None:
        self.data = data
        self.names = names

    def __len__(self) -> int:
        return len(self.data)

    @override
    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(zip(self.names, self.data[index], strict=True))


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
