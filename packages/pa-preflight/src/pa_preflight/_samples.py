"""Samples of a dataset, as they are and as tables."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sized
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from pa_data.rng import mix, seed_rng
from pa_preflight._tensors import TARGET_KEYS, stacked

_SAMPLES = 500

SECONDS = 5.0
"""The longest that samples are fetched for."""


class Samples:
    """Some samples of a dataset, and what there is to know of it.

    Args:
        data: A dataset, or a loader of one.

    Attributes:
        dataset: The dataset; None if its samples have no positions.
        samples: Samples from all over it.
    """

    def __init__(self, data: Any) -> None:
        self.data: Any = data
        dataset = dataset_of(data)
        has_positions = isinstance(dataset, Sized) and hasattr(dataset, "__getitem__")
        self.dataset: Any = dataset if has_positions and not isinstance(dataset, IterableDataset) else None
        size = 0 if self.dataset is None else len(self.dataset)
        self.positions = sorted(random.Random(0).sample(range(size), min(size, _SAMPLES)))
        self.samples: list[Any] = []
        until = time.monotonic() + SECONDS
        for position in self.positions:
            seed_rng(mix(position))
            self.samples.append(cast("Any", dataset)[position])
            if time.monotonic() > until:
                break

    def batches(self, asked: dict[str, Any], options: dict[str, Any]) -> tuple[int, Callable[[list[Any]], Any] | None]:
        """Return the number of samples in a batch, and what makes a batch of them.

        Args:
            asked: The arguments of the run.
            options: The arguments of the loader.
        """
        if is_loader(self.data):
            loader: Any = cast("object", self.data)
            return loader.batch_size or asked["per_device_batch_size"], loader.collate_fn
        return options.get("batch_size", asked["per_device_batch_size"]), options.get("collate_fn", asked["collate_fn"])

    def smallest_batch(self, asked: dict[str, Any], options: dict[str, Any]) -> int:
        """Return the number of samples of the smallest batch of an epoch, as far as it is known.

        Args:
            asked: The arguments of the run.
            options: The arguments of the loader.
        """
        size, _ = self.batches(asked, options)
        is_plain = not is_loader(self.data) or not getattr(cast("object", self.data), "drop_last", False)
        is_plain &= asked["samples_per_update"] is None and asked["order"] is None and not options.get("drop_last")
        rest = len(self.dataset) % size if self.dataset is not None and is_plain and size else 0
        return rest or size

    def targets(self) -> Tensor | None:
        """The last part of the samples, if it is a number or a tensor of one shape."""
        if not self.samples or not all(isinstance(one, (tuple, list)) for one in self.samples):
            return None
        last: list[Any] = [one[-1] for one in self.samples]
        if all(isinstance(one, (int, float)) for one in last):
            return torch.tensor(last)
        are_alike = all(isinstance(one, Tensor) and one.shape == last[0].shape for one in last)
        return torch.stack(last) if are_alike else None


def is_loader(data: object) -> bool:
    """Whether data are a DataLoader, whose type says nothing of its batches.

    Args:
        data: Anything.
    """
    return isinstance(data, DataLoader)


def dataset_of(data: Any) -> Any:
    """Return the dataset of a loader, or what is a dataset itself.

    Args:
        data: Either.
    """
    return getattr(cast("object", data), "dataset", None) if isinstance(data, DataLoader) else data


def subset(data: Dataset[Any], size: int) -> Dataset[Any]:
    """Return the first samples of a dataset.

    Args:
        data: One with positions.
        size: How many, or fewer if there are not so many.
    """
    return Subset(data, range(min(size, len(cast("Sized", data)))))


def spread(data: Dataset[Any], batches: int, size: int) -> Dataset[Any]:
    """Return samples from all over a dataset, as neighbours may differ little: as many as make some batches.

    Args:
        data: One with positions.
        batches: How many batches, or fewer if there are not so many samples.
        size: The number of samples in a batch.
    """
    length = len(cast("Sized", data))
    count = min(length, batches * size)
    positions = [number * length // count for number in range(count)]
    return Subset(data, [one for first in range(batches) for one in positions[first::batches]])


def inputs_of(samples: Samples) -> Tensor | None:
    """Return the first part of each sample in one tensor; None if their shapes differ, or they are not numbers.

    Args:
        samples: Of a dataset.
    """
    return stacked([_parts(one)[0] for one in samples.samples])


def targets_of(samples: Samples) -> Tensor | None:
    """Return the last part of each sample in one tensor; None if there are none, or they have other shapes.

    Args:
        samples: Of a dataset.
    """
    return stacked([_parts(one)[1] for one in samples.samples])


def _parts(sample: Any) -> tuple[Any, Any]:
    if isinstance(sample, Mapping):
        named: dict[Any, Any] = dict(cast("Any", sample))
        targets = [one for key, one in named.items() if key in TARGET_KEYS]
        inputs = [one for key, one in named.items() if key not in TARGET_KEYS]
        return (inputs[0] if inputs else None), (targets[0] if targets else None)
    if isinstance(sample, (tuple, list)):
        parts = cast("list[Any]", sample)
        return (parts[0] if parts else None), (parts[-1] if len(parts) > 1 else None)
    return sample, None
