"""Loaders as users build them, each made anew as in a new process."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
)
from typing_extensions import override

from tests.support.pa_core.training_states.small_runs import DrawingDataset

SAMPLES = 36
BATCH_SIZE = 6


class StreamsInState(DrawingDataset):
    """A dataset whose state holds what it draws from."""

    def state_dict(self) -> dict[str, Any]:
        """The three global streams."""
        return {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": np.random.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put them back."""
        torch.set_rng_state(state_dict["torch"])
        random.setstate(state_dict["python"])
        np.random.set_state(state_dict["numpy"])


class EagerSampler(Sampler[int]):
    """Draws its order from a generator of numpy as soon as it is iterated."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def __len__(self) -> int:
        return SAMPLES

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(self.rng.permutation(SAMPLES).tolist())


class CountingSampler(Sampler[int]):
    """Has an order for each epoch, and counts the epochs itself."""

    epoch = 0

    def __len__(self) -> int:
        return SAMPLES

    @override
    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        yield from random.Random(self.epoch).sample(range(SAMPLES), SAMPLES)


class BatchesByEpoch(Sampler[list[int]]):
    """Batches in an order for each epoch, of which it is told."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return SAMPLES // BATCH_SIZE

    @override
    def __iter__(self) -> Iterator[list[int]]:
        order = random.Random(self.epoch).sample(range(SAMPLES), SAMPLES)
        yield from (order[first : first + BATCH_SIZE] for first in range(0, SAMPLES, BATCH_SIZE))


class BatchesOfGenerator(BatchesByEpoch):
    """Batches in an order that is drawn with the first of them."""

    def __init__(self) -> None:
        self.own = generator()

    @override
    def __iter__(self) -> Iterator[list[int]]:
        yield from torch.randperm(SAMPLES, generator=self.own).reshape(-1, BATCH_SIZE).tolist()


class OwnDraws(DrawingDataset):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__(SAMPLES)
        self.rng = np.random.default_rng(2)

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, target = super().__getitem__(index)
        return inputs + torch.tensor([0.0, *self.rng.random(5)], dtype=torch.float32), target


class ShuffledStream(IterableDataset[tuple[Tensor, Tensor]]):
    """Shuffles its part of the samples when it is iterated."""

    def __len__(self) -> int:
        return SAMPLES

    @override
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        worker = get_worker_info()
        mine = list(range(SAMPLES)) if worker is None else list(range(worker.id, SAMPLES, worker.num_workers))
        random.shuffle(mine)
        yield from (DrawingDataset(SAMPLES)[index] for index in mine)


class StreamWithBuffer(ShuffledStream):
    """Takes each sample from a buffer, at a place that it draws just then."""

    @override
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        buffer = list(range(SAMPLES))
        while buffer:
            place = int(torch.randint(len(buffer), ()))
            yield DrawingDataset(SAMPLES)[buffer.pop(place)]


class StreamWithState(ShuffledStream):
    """Knows how far it has got in an order of its own."""

    def __init__(self) -> None:
        self.rng = random.Random(5)
        self.waiting: list[int] = []

    @override
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if not self.waiting:
            self.waiting = self.rng.sample(range(SAMPLES), SAMPLES)
        while self.waiting:
            yield DrawingDataset(SAMPLES)[self.waiting.pop()]

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""
        return {"waiting": list(self.waiting), "rng": self.rng.getstate()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go there."""
        self.waiting = list(state_dict["waiting"])
        self.rng.setstate(state_dict["rng"])


def batches_of(indices: list[int]) -> list[Any]:
    """The samples of a dataset that draws nothing, in batches."""
    samples = [(torch.tensor([float(index), *[index * 0.1] * 5]), torch.tensor(index % 3)) for index in indices]
    return [default_collate(samples[first : first + BATCH_SIZE]) for first in range(0, len(indices), BATCH_SIZE)]


class ShuffledBatches:
    """No DataLoader at all."""

    def __len__(self) -> int:
        return SAMPLES // BATCH_SIZE

    def __iter__(self) -> Iterator[Any]:
        yield from batches_of(random.sample(range(SAMPLES), SAMPLES))


class BatchesWithState(StreamWithState):
    """No DataLoader at all, with a state."""

    @override
    def __len__(self) -> int:
        return SAMPLES // BATCH_SIZE

    @override
    def __iter__(self) -> Iterator[Any]:
        if not self.waiting:
            self.waiting = self.rng.sample(range(SAMPLES), SAMPLES)
        while self.waiting:
            taken = [self.waiting.pop() for _ in range(BATCH_SIZE)]
            yield batches_of(taken)[0]


def loader(dataset: Any = None, **options: Any) -> Any:
    """A loader of torch, over a dataset that draws."""
    options = options if "batch_sampler" in options else {"batch_size": BATCH_SIZE, **options}
    return DataLoader(dataset or DrawingDataset(SAMPLES), **options)


def stateful(dataset: Any = None, **options: Any) -> Any:
    """A loader of torchdata, as above."""
    kind: Any = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    options = options if "batch_sampler" in options else {"batch_size": BATCH_SIZE, **options}
    return kind(dataset or DrawingDataset(SAMPLES), **options)


def generator() -> torch.Generator:
    """A generator with a seed of its own."""
    return torch.Generator().manual_seed(4)


def weighted() -> WeightedRandomSampler:
    """Draws with replacement."""
    return WeightedRandomSampler([1.0 + index for index in range(SAMPLES)], SAMPLES)


PERSISTENT: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}

ON_ONE_PROCESS: dict[str, Callable[[], Any]] = {
    "random": lambda: loader(shuffle=True),
    "weighted": lambda: loader(sampler=weighted()),
    "generator": lambda: loader(sampler=RandomSampler(range(SAMPLES), generator=generator())),
    "batch_sampler": lambda: loader(batch_sampler=BatchesByEpoch()),
    "workers": lambda: loader(sampler=weighted(), num_workers=2),
    "persistent": lambda: loader(shuffle=True, **PERSISTENT),
    "iterable": lambda: loader(ShuffledStream()),
    "iterable_workers": lambda: loader(ShuffledStream(), num_workers=2),
    "iterable_persistent": lambda: loader(ShuffledStream(), **PERSISTENT),
    "iterable_state": lambda: loader(StreamWithState()),
    "stateful": lambda: stateful(shuffle=True),
    "stateful_workers": lambda: stateful(shuffle=True, num_workers=2),
    "stateful_streams": lambda: stateful(StreamsInState(SAMPLES), shuffle=True, num_workers=2),
    "stateful_eager": lambda: stateful(sampler=EagerSampler()),
    "batches": lambda: batches_of(list(range(SAMPLES))),
    "object": ShuffledBatches,
    "object_state": BatchesWithState,
    "counting": lambda: loader(sampler=CountingSampler()),
    "buffer": lambda: loader(StreamWithBuffer()),
}
"""By the names in the rows of the page."""

ON_TWO_PROCESSES: dict[str, Callable[[], Any]] = {
    "split_random": lambda: loader(shuffle=True),
    "split_weighted": lambda: loader(sampler=weighted(), num_workers=2),
    "split_stateful": lambda: stateful(shuffle=True),
    "split_stateful_workers": lambda: stateful(shuffle=True, num_workers=2),
    "split_iterable": lambda: loader(StreamWithState()),
}
"""By the names in the rows of the page."""
