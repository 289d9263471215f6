"""Samplers that wrap another sampler or batch sampler: to shuffle, to repeat, to share out among processes, to skip.

Compose them in this order: shuffle, repeat, share out, batch, skip. ``pa_trial.DataLoader`` does all of it itself;
these are for data loaders of other kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, Generic, TypeVar, cast

import numpy as np
from torch.utils.data import BatchSampler, Sampler
from typing_extensions import override

from pa_trial.errors import ConfigurationError

__all__ = [
    "DistributedBatchSampler",
    "DistributedSampler",
    "RepeatBatchSampler",
    "RepeatSampler",
    "ReproducibleShuffleBatchSampler",
    "ReproducibleShuffleSampler",
    "SkipBatchSampler",
    "SkipSampler",
]

_ItemT = TypeVar("_ItemT")


class _SamplerAdaptor(Sampler[_ItemT], Generic[_ItemT]):
    """Yields the items of another sampler, in another order or in part."""

    def __init__(self, sampler: Iterable[_ItemT]) -> None:
        self.sampler: Iterable[_ItemT] = sampler
        self._source: Iterable[_ItemT] = sampler

    def __len__(self) -> int:
        return len(cast("Sized", self._source))


class _BatchSamplerAdaptor(_SamplerAdaptor[Any], BatchSampler):
    """Yields the batches of another batch sampler, and has its attributes."""

    @override
    def __init__(self, batch_sampler: Iterable[Sequence[Any]]) -> None:
        self.batch_sampler: Iterable[Sequence[Any]] = batch_sampler
        self._source: Iterable[Sequence[Any]] = batch_sampler
        for name in ("sampler", "batch_size", "drop_last"):
            if hasattr(batch_sampler, name):
                setattr(self, name, getattr(batch_sampler, name))


class RepeatSampler(_SamplerAdaptor[_ItemT]):
    """Iterates over a sampler again and again, without end, for a loop that counts batches instead of epochs.

    It has the same length as the sampler. A sampler that yields nothing is not repeated.

    Args:
        sampler: The sampler to repeat.

    Example:
        >>> from itertools import islice
        >>> list(islice(RepeatSampler([0, 1, 2]), 7))
        [0, 1, 2, 0, 1, 2, 0]
    """

    @override
    def __iter__(self) -> Iterator[_ItemT]:
        yields_something = True
        while yields_something:
            yields_something = False
            for item in self._source:
                yields_something = True
                yield item


class RepeatBatchSampler(_BatchSamplerAdaptor, RepeatSampler[Any]):
    """Iterates over a batch sampler again and again, without end, for a loop that counts batches instead of epochs.

    It has the same length as the batch sampler. A batch sampler that yields nothing is not repeated.

    Args:
        batch_sampler: The sampler to repeat.

    Example:
        >>> from itertools import islice
        >>> list(islice(RepeatBatchSampler([[0, 1], [2]]), 3))
        [[0, 1], [2], [0, 1]]
    """


class DistributedSampler(_SamplerAdaptor[_ItemT]):
    """Yields the share of a process: every ``num_workers``-th item, beginning with item number ``rank``.

    ``pa_trial.DataLoader`` shards its samples itself; use this class for a loader of torch. Processes may get a
    different number of items, unlike with torch's ``DistributedSampler``, which repeats some.

    Args:
        sampler: The sampler to shard. It has to yield the same items on all processes.
        num_workers: The number of processes.
        rank: The number of this process, from 0.

    Example:
        >>> list(DistributedSampler([0, 1, 2, 3, 4], num_workers=2, rank=1))
        [1, 3]
    """

    def __init__(self, sampler: Iterable[_ItemT], num_workers: int, rank: int) -> None:
        super().__init__(sampler)
        self.num_workers: int = num_workers
        self.rank: int = rank

    @override
    def __len__(self) -> int:
        return len(range(self.rank, super().__len__(), self.num_workers))

    @override
    def __iter__(self) -> Iterator[_ItemT]:
        return islice(self._source, self.rank, None, self.num_workers)


class DistributedBatchSampler(_BatchSamplerAdaptor, DistributedSampler[Any]):
    """Yields the share of a process: every ``num_workers``-th batch, beginning with batch number ``rank``.

    ``pa_trial.DataLoader`` shards its batches itself; use this class for a loader of torch.

    Args:
        batch_sampler: The sampler to shard. It has to yield the same items on all processes.
        num_workers: The number of processes.
        rank: The number of this process, from 0.

    Raises:
        ConfigurationError: There is no such process. The error is a ``ValueError`` too.

    Example:
        >>> list(DistributedBatchSampler([[0, 1], [2, 3], [4]], num_workers=2, rank=0))
        [[0, 1], [4]]
    """

    def __init__(self, batch_sampler: Iterable[Sequence[Any]], num_workers: int, rank: int) -> None:
        if num_workers < 1 or not 0 <= rank < num_workers:
            raise ConfigurationError(
                f"There is no such share of the batches: num_workers={num_workers}, rank={rank}. The first has rank 0."
            )
        super().__init__(batch_sampler)
        self.num_workers: int = num_workers
        self.rank: int = rank


class SkipSampler(_SamplerAdaptor[_ItemT]):
    """Leaves out the first items of each iteration, for the first epoch after a training is resumed.

    It has the same length as the sampler.

    Args:
        sampler: The sampler to iterate over.
        skip: The number of items that are left out.

    Raises:
        ConfigurationError: ``skip`` is negative.

    Example:
        >>> list(SkipSampler([0, 1, 2], skip=2))
        [2]
    """

    def __init__(self, sampler: Iterable[_ItemT], skip: int) -> None:
        super().__init__(sampler)
        self.skip: int = _checked_skip(skip)

    @override
    def __iter__(self) -> Iterator[_ItemT]:
        return islice(self._source, self.skip, None)


class SkipBatchSampler(_BatchSamplerAdaptor, SkipSampler[Any]):
    """Leaves out the first batches of each iteration, for the first epoch after a training is resumed.

    It has the same length as the batch sampler, so that an epoch has the same length after a training is resumed.

    Args:
        batch_sampler: The sampler to iterate over.
        skip: The number of batches that are left out.

    Raises:
        ConfigurationError: ``skip`` is negative.

    Example:
        >>> list(SkipBatchSampler([[0, 1], [2]], skip=1))
        [[2]]
    """

    def __init__(self, batch_sampler: Iterable[Sequence[Any]], skip: int) -> None:
        super().__init__(batch_sampler)
        self.skip: int = _checked_skip(skip)


class ReproducibleShuffleSampler(_SamplerAdaptor[_ItemT]):
    """Yields the items of a sampler in a random order, which is different in each iteration.

    Args:
        sampler: The sampler to shuffle.
        seed: Decides the orders of all iterations; the same on all processes.

    Example:
        >>> shuffled = ReproducibleShuffleSampler(range(5), seed=7)
        >>> again = ReproducibleShuffleSampler(range(5), seed=7)
        >>> [list(shuffled), list(shuffled)] == [list(again), list(again)]
        True
    """

    def __init__(self, sampler: Iterable[_ItemT], seed: int) -> None:
        super().__init__(sampler)
        self._random = np.random.RandomState(seed)

    @override
    def __iter__(self) -> Iterator[_ItemT]:
        everything: list[Any] = list(self._source)
        self._random.shuffle(everything)
        return iter(everything)


class ReproducibleShuffleBatchSampler(_BatchSamplerAdaptor, ReproducibleShuffleSampler[Any]):
    """Yields the batches of a batch sampler in a random order, which is different in each iteration.

    Args:
        batch_sampler: The sampler to shuffle; each batch stays as it is.
        seed: Decides the orders of all iterations; the same on all processes.

    Example:
        >>> shuffled = ReproducibleShuffleBatchSampler([[0, 1], [2, 3], [4]], seed=7)
        >>> sorted(shuffled)
        [[0, 1], [2, 3], [4]]
    """

    def __init__(self, batch_sampler: Iterable[Sequence[Any]], seed: int) -> None:
        super().__init__(batch_sampler)
        self._random = np.random.RandomState(seed)


def _checked_skip(skip: int) -> int:
    if skip < 0:
        raise ConfigurationError(f"skip must be at least 0, got skip={skip}.")
    return skip
