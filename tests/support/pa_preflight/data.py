"""Data that can be learnt in a few steps, with inputs around zero and of unit size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset, IterableDataset, TensorDataset
from typing_extensions import override

Change: TypeAlias = (
    Callable[[Tensor], Sequence[Tensor]]
    | Callable[[Tensor, Tensor], Sequence[Tensor]]
    | Callable[[Tensor, Tensor, Tensor], Sequence[Tensor]]
)
"""What makes other tensors of those of a dataset."""


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
    centres = torch.randn(classes, features, generator=seeded(0))
    draws = seeded(seed)
    targets = torch.randint(0, classes, (num_samples,), generator=draws)
    inputs = centres[targets] + 0.4 * torch.randn(num_samples, features, generator=draws)
    return TensorDataset(inputs * scale + shift, targets)


def lines(num_samples: int = 480, *, seed: int = 1, features: int = 6, outputs: int = 1) -> TensorDataset:
    """Standardised inputs, and standardised targets of shape ``(num_samples, outputs)`` that are linear in them."""
    weights = torch.randn(features, outputs, generator=seeded(0))
    draws = seeded(seed)
    inputs = torch.randn(num_samples, features, generator=draws)
    noise = 0.05 * torch.randn(num_samples, outputs, generator=draws)
    return TensorDataset(inputs, inputs @ (weights / weights.norm(dim=0)) + noise)


def labels_of_several(num_samples: int = 480, *, seed: int = 1, features: int = 8, labels: int = 5) -> TensorDataset:
    """Samples with several labels each: ones and zeros of dtype float32."""
    inputs, values = lines(num_samples, seed=seed, features=features, outputs=labels).tensors
    return TensorDataset(inputs, (values > 0).float())


def pictures(num_samples: int = 320, *, seed: int = 1, classes: int = 4, size: int = 8) -> TensorDataset:
    """Grey pictures in which one of four quarters is bright, and which one as the target."""
    draws = seeded(seed)
    targets = torch.randint(0, classes, (num_samples,), generator=draws)
    images = 0.5 * torch.randn(num_samples, 1, size, size, generator=draws) - 0.5
    half = size // 2
    for index, target in enumerate(targets.tolist()):
        row, column = half * (target // 2), half * (target % 2)
        images[index, :, row : row + half, column : column + half] += 2
    return TensorDataset(images, targets)


def blobs(num_samples: int = 240, *, size: int = 12) -> tuple[Tensor, Tensor]:
    """Pictures of a square in one of three colours, with their channels last, and which colour it has."""
    draws = seeded(1)
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
    draws = seeded(seed)
    targets = torch.randint(0, classes, (num_samples,), generator=draws)
    own = torch.randint(0, tokens_of_class, (num_samples, length), generator=draws) + tokens_of_class * targets[:, None]
    others = torch.randint(0, classes * tokens_of_class, (num_samples, length), generator=draws)
    is_own = torch.rand(num_samples, length, generator=draws) < 0.7
    return TensorDataset(1 + torch.where(is_own, own, others), targets)


def walks(num_samples: int = 320, *, seed: int = 1, length: int = 10, features: int = 4) -> TensorDataset:
    """Sequences of standardised vectors, and the mean of their first feature as the target of shape (N, 1)."""
    inputs = torch.randn(num_samples, length, features, generator=seeded(seed))
    return TensorDataset(inputs, inputs[:, :, :1].mean(dim=1) * length**0.5)


def sequences(*, labels_from: int) -> TensorDataset:
    """Ten steps of six numbers each, and three of four labels that follow from them, numbered from the first."""
    steps = torch.randn(320, 10, 6, generator=seeded(1))
    return TensorDataset(steps, steps[:, 1::3, :4].argmax(dim=2) + labels_from)


def sorted_by_target(data: TensorDataset) -> TensorDataset:
    """The same samples, those of the first class first."""
    order = data.tensors[1].argsort(stable=True)
    return TensorDataset(*(tensor[order] for tensor in data.tensors))


def of(data: TensorDataset, change: Change) -> TensorDataset:
    """The same samples with other tensors, which a function makes of theirs."""
    return TensorDataset(*cast("Callable[..., Sequence[Tensor]]", change)(*data.tensors))


def one_hot(targets: Tensor, classes: int = 4) -> Tensor:
    """Ones and zeros in place of the numbers of classes."""
    return functional.one_hot(targets, classes).float()


def column(targets: Tensor) -> Tensor:
    """Targets as a column of float32."""
    return targets.float().unsqueeze(1)


def parts_of(data: TensorDataset, *bounds: tuple[int, int]) -> list[TensorDataset]:
    """Parts of some samples, from a first to before a last one."""
    return [TensorDataset(*(one[start:stop] for one in data.tensors)) for start, stop in bounds]


class Fetched(Dataset[Any]):
    """Samples that a function makes of a dataset and a position."""

    def __init__(self, data: Any, fetch: Callable[[Any, int], Any], length: int | None = None) -> None:
        self.data, self.fetch = data, fetch
        self.length = len(data) if length is None else length

    def __len__(self) -> int:
        return self.length

    @override
    def __getitem__(self, index: int) -> Any:
        return self.fetch(self.data, index)


def up_to_a_pixel() -> tuple[int, int]:
    """By how many pixels a picture is moved, down and to the right."""
    down, right = torch.randint(-1, 2, (2,)).tolist()
    return down, right


def shifted(data: TensorDataset, draw: Callable[[], tuple[int, int]] = up_to_a_pixel) -> Fetched:
    """Pictures that are moved by up to a pixel at random each time that they are read."""

    def fetch(stored: TensorDataset, index: int) -> tuple[Tensor, Tensor]:
        image, target = stored[index]
        return torch.roll(image, draw(), dims=(1, 2)), target

    return Fetched(data, fetch)


class Stream(IterableDataset[Any]):
    """Samples one after the other; with a length, unless it is None."""

    def __init__(self, samples: Callable[[], Iterator[Any]]) -> None:
        self.samples = samples

    @override
    def __iter__(self) -> Iterator[Any]:
        return self.samples()


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


def first_sample(samples: list[Any]) -> Any:
    """The only sample of a batch, without a dimension for samples."""
    return samples[0]


def seeded(seed: int = 1) -> torch.Generator:
    """Random numbers that are always the same."""
    return torch.Generator().manual_seed(seed)
