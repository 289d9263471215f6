"""Samplers that wrap another sampler or batch sampler: to shuffle, to repeat, to share out among processes, to skip.

Compose them in this order: shuffle, repeat, share out, batch, skip. ``pa_trial.DataLoader`` does all of it itself;
use these samplers for a data loader of torch.
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

    Use it in a torch ``DataLoader``, between shuffling and sharding; ``pa_trial.DataLoader`` repeats its batches
    itself. ``RepeatBatchSampler`` does the same for batches. Its ``len()`` is the length of the sampler, which is the
    length of an epoch. A sampler that yields nothing is not repeated.

    Args:
        sampler: The sampler to repeat: any iterable of indices that can be iterated over again.

    Attributes:
        sampler: As passed.

    Example:
        >>> from itertools import islice
        >>> from pa_trial.samplers import RepeatSampler
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

    Pass it to a torch ``DataLoader`` as ``batch_sampler``; ``pa_trial.DataLoader`` repeats its batches itself.
    ``RepeatSampler`` does the same for single indices. Its ``len()`` is the number of batches in an epoch. A batch
    sampler that yields nothing is not repeated.

    Args:
        batch_sampler: The batch sampler to repeat: any iterable of lists of indices that can be iterated over again.

    Attributes:
        batch_sampler: As passed. The batch sampler's ``sampler``, ``batch_size`` and ``drop_last`` are also attributes.

    Example:
        >>> from itertools import islice
        >>> from pa_trial.samplers import RepeatBatchSampler
        >>> list(islice(RepeatBatchSampler([[0, 1], [2]]), 3))
        [[0, 1], [2], [0, 1]]
    """


class DistributedSampler(_SamplerAdaptor[_ItemT]):
    """Yields the share of a process: every ``num_workers``-th item, beginning with item number ``rank``.

    Use it for a torch ``DataLoader``; ``pa_trial.DataLoader`` shards its batches itself. ``DistributedBatchSampler``
    shards whole batches. Unlike torch's ``DistributedSampler``, which repeats some items, it may yield different
    numbers of items on different processes. Its ``len()`` is the number of items on this process.

    Args:
        sampler: The sampler to shard. It has to yield the same items on all processes.
        num_workers: The number of processes, ``context.distributed.size`` (not of loader workers).
        rank: The number of this process, ``context.distributed.rank``, from 0 to ``num_workers - 1``.

    Attributes:
        sampler: As passed.
        num_workers: As passed.
        rank: As passed.

    Example:
        >>> from pa_trial.samplers import DistributedSampler
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

    Pass it to a torch ``DataLoader`` as ``batch_sampler``; ``pa_trial.DataLoader`` shards its batches itself.
    ``DistributedSampler`` shards single indices. Processes may get different numbers of batches. Its ``len()`` is the
    number of batches on this process.

    Args:
        batch_sampler: The batch sampler to shard. It has to yield the same batches on all processes.
        num_workers: The number of processes, ``context.distributed.size`` (not of loader workers).
        rank: The number of this process, ``context.distributed.rank``, from 0 to ``num_workers - 1``.

    Attributes:
        batch_sampler: As passed.
        num_workers: As passed.
        rank: As passed.

    Raises:
        ConfigurationError: There is no such process. The error is also a ``ValueError``.

    Example:
        >>> from pa_trial.samplers import DistributedBatchSampler
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
    """Leaves out the first items of each iteration, to resume within an epoch.

    Use it for a torch ``DataLoader``, in the first epoch after a training is resumed; ``pa_trial.DataLoader`` skips
    items itself. ``SkipBatchSampler`` skips whole batches. Its ``len()`` is the length of the sampler, so that an epoch
    has the same length after a training is resumed.

    Args:
        sampler: The sampler to iterate over.
        skip: The number of items that are left out, at least 0.

    Attributes:
        sampler: As passed.
        skip: As passed.

    Raises:
        ConfigurationError: ``skip`` is negative. The error is also a ``ValueError``.

    Example:
        >>> from pa_trial.samplers import SkipSampler
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
    """Leaves out the first batches of each iteration, to resume within an epoch.

    Pass it to a torch ``DataLoader`` as ``batch_sampler``, in the first epoch after a training is resumed;
    ``pa_trial.DataLoader`` skips batches itself. ``SkipSampler`` skips single indices. Its ``len()`` is the length of
    the batch sampler, so that an epoch has the same length after a training is resumed.

    Args:
        batch_sampler: The batch sampler to iterate over.
        skip: The number of batches that are left out, at least 0.

    Attributes:
        batch_sampler: As passed.
        skip: As passed.

    Raises:
        ConfigurationError: ``skip`` is negative. The error is also a ``ValueError``.

    Example:
        >>> from pa_trial.samplers import SkipBatchSampler
        >>> list(SkipBatchSampler([[0, 1], [2]], skip=1))
        [[2]]
    """

    def __init__(self, batch_sampler: Iterable[Sequence[Any]], skip: int) -> None:
        super().__init__(batch_sampler)
        self.skip: int = _checked_skip(skip)


class ReproducibleShuffleSampler(_SamplerAdaptor[_ItemT]):
    """Yields the items of a sampler in a random order, which is different in each iteration and the same in each run.

    Use it for a torch ``DataLoader``, before sharding; with ``pa_trial.DataLoader``, pass ``shuffle=True`` instead.
    ``ReproducibleShuffleBatchSampler`` shuffles whole batches. The global random number generators are not used. All
    items are collected before the first is yielded. The order of an epoch depends on the number of iterations before
    it, so when a training resumes, also iterate over the skipped epochs.

    Args:
        sampler: The sampler to shuffle; it must have an end.
        seed: The seed that determines the orders of all iterations, from 0 to ``2**32 - 1``. Pass the same seed on all
            processes.

    Attributes:
        sampler: As passed.

    Example:
        >>> from pa_trial.samplers import ReproducibleShuffleSampler
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
    """Yields the batches of a batch sampler in a random order, different in each iteration and the same in each run.

    Use it for a torch ``DataLoader``, before sharding, if batches must keep their samples; with
    ``pa_trial.DataLoader``, pass ``shuffle=True`` instead. ``ReproducibleShuffleSampler`` shuffles single indices. The
    global random number generators are not used. All batches are collected before the first is yielded. The order of an
    epoch depends on the number of iterations before it.

    Args:
        batch_sampler: The batch sampler to shuffle; each batch stays as it is. It must have an end.
        seed: The seed that determines the orders of all iterations, from 0 to ``2**32 - 1``. Pass the same seed on all
            processes.

    Attributes:
        batch_sampler: As passed.

    Example:
        >>> from pa_trial.samplers import ReproducibleShuffleBatchSampler
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
