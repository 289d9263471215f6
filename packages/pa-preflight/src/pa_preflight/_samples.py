"""Samples of a dataset, unchanged and as tables."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from pa_core import Trainer, TrainerCallback
from pa_data.rng import mix, seed_rng
from pa_preflight._arguments import is_overridden, trial
from pa_preflight._tensors import TARGET_KEYS, stacked

_SAMPLES = 500

_SECONDS = 5.0
"""The most seconds in which samples are fetched."""


class Samples:
    """Some samples of a dataset.

    Args:
        data: A dataset, or a loader of a dataset.

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
        self.samples = list(fetched(dataset, self.positions))


def fetched(dataset: Any, positions: Iterable[int]) -> Iterator[Any]:
    """Yield samples for a few seconds, each with different random numbers.

    Args:
        dataset: The dataset.
        positions: The positions of the samples.
    """
    until = time.monotonic() + _SECONDS
    for position in positions:
        seed_rng(mix(position))
        yield dataset[position]
        if time.monotonic() > until:
            return


@dataclass(frozen=True)
class Job:
    """A run that is checked.

    Attributes:
        trainer: The trainer.
        asked: The arguments of ``train``, adapted for the short runs of a check.
        train: Samples of the training data.
    """

    trainer: Trainer[Any, Any, Any, Any]
    asked: dict[str, Any]
    train: Samples

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of the training loader."""
        return self.asked["train_dataloader_kwargs"] or {}

    @property
    def has_own_step(self) -> bool:
        """Whether the script overrides the training step."""
        return is_overridden(self.trainer, "calculate_train_batch_loss")

    @property
    def batch_size(self) -> int:
        """The number of samples in a training batch."""
        return self.batches(self.train)[0]

    @property
    def smallest_batch(self) -> int:
        """The number of samples of the smallest batch of an epoch, as far as it is known."""
        size, data = self.batch_size, self.train.data
        is_plain = not is_loader(data) or not getattr(cast("object", data), "drop_last", False)
        is_plain &= self.asked["samples_per_update"] is None and self.asked["order"] is None
        is_plain &= not self.options.get("drop_last")
        rest = len(self.train.dataset) % size if self.train.dataset is not None and is_plain and size else 0
        return rest or size

    def batches(self, samples: Samples) -> tuple[int, Callable[[list[Any]], Any] | None]:
        """Return the number of samples in a batch, and the function that makes a batch of them.

        Args:
            samples: Samples of the training data or of an evaluation set.
        """
        size, collate_fn = self.asked["per_device_batch_size"], self.asked["collate_fn"]
        if is_loader(samples.data):
            loader: Any = cast("object", samples.data)
            return loader.batch_size or size, loader.collate_fn
        options = self.options if samples is self.train else self.asked["eval_dataloader_kwargs"] or {}
        return options.get("batch_size", size), options.get("collate_fn", collate_fn)

    def undone(self, *callbacks: TrainerCallback, data: object = None) -> AbstractContextManager[None]:
        """Return a context in which the trainer can train and evaluate, and which then restores it.

        Args:
            callbacks: The callbacks.
            data: The data that it gets in addition to the arguments of the run.
        """
        return trial(self.trainer, *callbacks, data=[data, *self.asked.values()])

    def evaluate(self, samples: Samples, data: Dataset[Any]) -> dict[str, float]:
        """Evaluate in this process.

        Args:
            samples: The samples whose loader is used.
            data: The samples to evaluate.
        """
        size, collate_fn = self.batches(samples)
        return self.trainer.evaluate(data, size, {"num_workers": 0}, collate_fn)


def is_loader(data: object) -> bool:
    """Whether data are a DataLoader; its type does not include the type of its batches.

    Args:
        data: Anything.
    """
    return isinstance(data, DataLoader)


def dataset_of(data: Any) -> Any:
    """Return the dataset of a loader, or a dataset unchanged.

    Args:
        data: A loader or a dataset.
    """
    return getattr(cast("object", data), "dataset", None) if isinstance(data, DataLoader) else data


def subset(data: Dataset[Any], size: int) -> Dataset[Any]:
    """Return the first samples of a dataset.

    Args:
        data: A dataset with positions.
        size: The number of samples, or fewer if there are not so many.
    """
    return Subset(data, range(min(size, len(cast("Sized", data)))))


def spread(data: Dataset[Any], batches: int, size: int) -> Dataset[Any]:
    """Return samples from all parts of a dataset, because neighbors may differ little; enough of them for some batches.

    Args:
        data: A dataset with positions.
        batches: The number of batches, or fewer if there are not so many samples.
        size: The number of samples in a batch.
    """
    length = len(cast("Sized", data))
    count = min(length, batches * size)
    positions = [number * length // count for number in range(count)]
    return Subset(data, [position for first in range(batches) for position in positions[first::batches]])


def inputs_of(samples: Samples) -> Tensor | None:
    """Return the first parts of all samples as a tensor; None if their shapes differ, or they are not numbers.

    Args:
        samples: Samples of a dataset.
    """
    return stacked([_parts(sample)[0] for sample in samples.samples])


def targets_of(samples: Samples) -> Tensor | None:
    """Return the last parts of all samples as a tensor; None if there are none, or their shapes differ.

    Args:
        samples: Samples of a dataset.
    """
    return stacked([_parts(sample)[1] for sample in samples.samples])


def _parts(sample: Any) -> tuple[Any, Any]:
    if isinstance(sample, Mapping):
        named: dict[Any, Any] = dict(cast("Any", sample))
        targets = [value for key, value in named.items() if key in TARGET_KEYS]
        inputs = [value for key, value in named.items() if key not in TARGET_KEYS]
        return (inputs[0] if inputs else None), (targets[0] if targets else None)
    if isinstance(sample, (tuple, list)):
        parts = cast("list[Any]", sample)
        return (parts[0] if parts else None), (parts[-1] if len(parts) > 1 else None)
    return sample, None
