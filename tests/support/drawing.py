"""Datasets that draw, and what the tests say about batches."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset
from typing_extensions import override

from pa_data import KeyedDataLoader, Split
from pa_data.rng import capture_rng_state, restore_rng_state, seed_rng


@contextmanager
def preserved_streams() -> Generator[None]:
    """Go on with the global streams of python, numpy and torch within the context, and put them back behind it."""
    streams = capture_rng_state(torch.device("cpu"))
    try:
        yield
    finally:
        restore_rng_state(streams, torch.device("cpu"))


class Drawing(Dataset[Tensor]):
    """A sample is its index, and one draw from each global stream."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    @override
    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(
            [index, random.random(), float(numpy.random.rand()), torch.rand(()).item()], dtype=torch.float64
        )


class Indices(Dataset[int]):
    """A sample is its index; the dataset remembers which ones it was asked for."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples
        self.fetched: list[int] = []

    def __len__(self) -> int:
        return self.num_samples

    @override
    def __getitem__(self, index: int) -> int:
        self.fetched.append(index)
        return index


class DrawnStream(IterableDataset[Tensor]):
    """The samples of `Drawing`, which come at random out of a buffer of three, as streams are shuffled.

    Args:
        num_samples: How many there are.
        length: How many it says there are; all by default.
    """

    def __init__(self, num_samples: int, length: int | None = None) -> None:
        self.samples = Drawing(num_samples)
        self.length = num_samples if length is None else length
        self.epoch = 0

    def __len__(self) -> int:
        return self.length

    def set_epoch(self, epoch: int) -> None:
        """Begin with another sample in each epoch."""
        self.epoch = epoch

    @override
    def __iter__(self) -> Iterator[Tensor]:
        arriving, count = iter(range(len(self.samples))), len(self.samples)
        buffer = list(islice(arriving, 3))
        for number in arriving:
            place = random.randrange(len(buffer))
            buffer[place], drawn = number, buffer[place]
            yield self.samples[(drawn + 5 * self.epoch) % count]
        while buffer:
            yield self.samples[(buffer.pop(random.randrange(len(buffer))) + 5 * self.epoch) % count]


def numbers(tensor: Tensor) -> list[int]:
    """Return the elements of an integer tensor of one dimension."""
    return [int(element) for element in tensor]


def indices_of(batches: Iterable[Any]) -> list[list[int]]:
    """Return the sample indices of batches of `Indices`."""
    return [[int(index) for index in batch] for batch in batches]


def ranks_of(dataset: Dataset[Any], num_processes: int, **options: Any) -> list[KeyedDataLoader[Any]]:
    """Return the loaders of all processes of a run."""
    return [
        KeyedDataLoader(dataset, rank=rank, num_processes=num_processes, **options) for rank in range(num_processes)
    ]


def samples_by_index(batches: Iterable[Tensor]) -> dict[int, tuple[float, ...]]:
    """Return what was drawn for each sample of batches of `Drawing`."""
    return {int(row[0]): (float(row[1]), float(row[2]), float(row[3])) for batch in batches for row in batch}


def draw_after(iterated: Iterable[Any]) -> tuple[float, float, float]:
    """Return what the main process draws from its three streams after something was iterated."""
    seed_rng(1)
    for _ in iterated:
        pass
    return random.random(), float(numpy.random.rand()), torch.rand(()).item()


def number_in_update(split: Split, step: int, rank: int) -> int | None:
    """Return the number of the micro-batch that a process takes in a step of its update; None if it takes nothing."""
    (block, _), number = split.micro_batches(step, rank), step % split.steps_per_update
    return block[number] if number < len(block) else None


def by_update_and_number(loaders: list[KeyedDataLoader[Any]]) -> dict[tuple[int, int], Any]:
    """Return the batches of all processes by the first position of their update and their number in it."""
    found: dict[tuple[int, int], Any] = {}
    for loader in loaders:
        split, batches = loader.split, iter(loader)
        for step in range(len(split)):
            number = number_in_update(split, step, loader.rank)
            if number is not None:
                found[split.update(step).start, number] = next(batches)
        assert next(batches, None) is None
    return dict(sorted(found.items()))
