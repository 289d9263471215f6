"""Which samples each batch holds, in an endless sequence of epochs that a process may enter at any batch.

A batch has a number in that sequence, counted over all epochs and all processes. Its samples, and the random draws
while they are loaded, depend only on the seed and on that number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from typing_extensions import override

from pa_data import BatchRequest, UpdateSplit, set_epoch
from pa_data.orders import EpochOrder, epoch_order
from pa_data.rng import capture_rng_state, extend_key, mix, restore_rng_state, restored_rng_states, seed_rng
from pa_trial.errors import EmptyLoaderError
from pa_trial.samplers import DistributedBatchSampler, SkipBatchSampler

_CPU = torch.device("cpu")
_DRAWS_OF_SAMPLERS = -1  # extends the key of an epoch, in place of the index of a sample
_BATCHES_AHEAD = 64
_MOST_BATCHES_AT_ONCE = 1024
_WITHOUT_STATE: tuple[type, ...] = (
    list,
    tuple,
    range,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)


@dataclass(frozen=True)
class EpochOrders:
    """The order of a loader without a sampler: each epoch visits each sample once.

    The key of a batch is the key of its epoch, which the index of a sample extends.

    Attributes:
        num_samples: The number of samples.
        batch_size: The number of samples of a full batch.
        drop_last: Whether the samples that do not fill a batch are left out.
        shuffle: Whether each epoch has a different random order.
        order_seed: Determines these orders, together with the epoch number.
        seed: Determines the random draws.
    """

    num_samples: int
    batch_size: int
    drop_last: bool
    shuffle: bool
    order_seed: int
    seed: int

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return (self.num_samples + (0 if self.drop_last else self.batch_size - 1)) // self.batch_size

    def requests(self, first: int, stride: int, *, repeat: bool) -> Iterator[BatchRequest]:
        """Yield every ``stride``-th batch from number ``first`` on, which is found without iterating."""
        size, length = self.batch_size, len(self)
        epoch, place = divmod(first, length) if length else (0, 0)
        while length and (repeat or epoch == 0):
            order = epoch_order(self.num_samples, seed=self.order_seed, epoch=epoch, shuffle=self.shuffle)
            key = mix(self.seed, epoch)
            for number in range(place, length, stride):
                start = number * size
                yield key, order.indices(start, min(start + size, self.num_samples)), None
            # The first batch of this process in a later epoch; with many processes, it may have no batch in an epoch.
            epochs, place = divmod(place + -(-(length - place) // stride) * stride, length)
            epoch += epochs


@dataclass(frozen=True)
class UpdateOrders(EpochOrders):
    """The same order, cut into updates of the same number of samples on any number of processes.

    The shares of the processes in the updates are numbered: number ``first`` is the share of process
    ``first % stride`` in update ``first // stride``.

    Attributes:
        split: Cuts an epoch.
    """

    split: UpdateSplit

    @override
    def __len__(self) -> int:
        """Return the number of updates of an epoch."""
        return len(range(0, len(self.split), self.split.steps_per_update))

    def pieces(self, first: int, stride: int) -> Iterator[tuple[int, EpochOrder, range, float, bool]]:
        """Yield each piece of a process: epoch, its order, positions, weight, and whether it is the last of its update.

        The gradient of an update is the mean over the processes of the sums of their weighted gradients. A process
        without a sample runs a piece of the chief, with weight zero, because all processes take part.
        """
        split, begin, every = self.split, first // stride, self.split.steps_per_update
        for epoch in count(begin // len(self)):
            order = epoch_order(self.num_samples, seed=self.order_seed, epoch=epoch, shuffle=self.shuffle)
            for update in range(max(0, begin - epoch * len(self)), len(self)):
                steps = range(len(split))[update * every : (update + 1) * every]
                samples = sum(map(split.size, steps))
                for step in steps:
                    own = split.piece(step, first % stride)
                    yield epoch, order, own or split.piece(step, 0), len(own) * stride / samples, step == steps[-1]

    @override
    def requests(self, first: int, stride: int, *, repeat: bool) -> Iterator[BatchRequest]:
        """Yield the pieces of a process, epoch after epoch."""
        for epoch, order, positions, *_ in self.pieces(first, stride):
            yield mix(self.seed, epoch), order.indices(positions.start, positions.stop), None


@dataclass(frozen=True)
class SamplerOrder:
    """The order of a loader with a sampler or a batch sampler, whose draws are seeded by the epoch.

    The sampler is iterated again for each epoch, and gets the epoch number if it has a ``set_epoch`` method. Earlier
    epochs are iterated without loading samples, unless all parts are torch's own and keep no state between epochs.

    The key of a batch is extended by the place of a sample in it: a sampler may choose a sample repeatedly.

    Attributes:
        batch_sampler: Yields the indices of the samples of each batch.
        seed: Keys the draws of the sampler, and of the samples.
    """

    batch_sampler: Iterable[Sequence[Any]]
    seed: int

    def requests(self, first: int, stride: int, *, repeat: bool) -> Iterator[BatchRequest]:
        """Yield every ``stride``-th batch from number ``first`` on.

        Raises:
            EmptyLoaderError: The batches are repeated, but the sampler yields none.
        """
        without_state = _is_without_state(self.batch_sampler)
        ahead = _BATCHES_AHEAD if without_state else 1
        length = len(cast("Sized", self.batch_sampler)) if without_state else 0
        epoch = first // length if repeat and length else 0
        wanted, number = first, epoch * length
        while True:
            begin = number
            iteration = _Iteration(self.batch_sampler, epoch, mix(self.seed, epoch))
            while taken := iteration.take(min(wanted - number + ahead, _MOST_BATCHES_AT_ONCE)):
                end = number + len(taken)
                while wanted < end:
                    indices = _listed(taken[wanted - number])
                    yield mix(self.seed, wanted), indices, range(len(indices))
                    wanted += stride
                number = end
            if not repeat:
                return
            if number == begin:
                raise EmptyLoaderError(
                    "The training data loader has no batches.",
                    given=f"a {type(self.batch_sampler).__name__} that yields nothing in epoch {epoch}",
                    do="Check how the sampler was made. A common cause is an iterator, which can be used only once.",
                )
            epoch += 1


class _Iteration:
    """An iteration over a batch sampler, with its own random states until the iteration ends."""

    def __init__(self, batch_sampler: Iterable[Sequence[Any]], epoch: int, key: int) -> None:
        set_epoch(batch_sampler, epoch)
        with restored_rng_states(_CPU):
            seed_rng(extend_key(key, _DRAWS_OF_SAMPLERS))
            self._batches = iter(batch_sampler)
            self._rngs = capture_rng_state(_CPU)

    def take(self, number: int) -> list[Sequence[Any]]:
        """Return the next batches, or all that are left."""
        with restored_rng_states(_CPU):
            restore_rng_state(self._rngs, _CPU)
            taken = list(islice(self._batches, number))
            self._rngs = capture_rng_state(_CPU)
        return taken


class KeyedShare(SkipBatchSampler):
    """The batches of a process, each with the key of its draws.

    Args:
        batches: The share of the process.
        skip: The number of batches that are left out at the beginning.
        order: The sequence that is divided among the processes.
        repeat: Whether later epochs follow the first epoch.

    Attributes:
        order: As passed.
        first: The number of its first batch.
        stride: The number of processes.
    """

    def __init__(
        self, batches: DistributedBatchSampler, skip: int, order: EpochOrders | SamplerOrder, repeat: bool
    ) -> None:
        super().__init__(batches, skip)
        self.first: int = skip * batches.num_workers + batches.rank
        self.stride: int = batches.num_workers
        self.order = order
        self._repeat = repeat

    def requests(self) -> Iterator[BatchRequest]:
        """Return the request from which each batch is made."""
        return self.order.requests(self.first, self.stride, repeat=self._repeat)

    @override
    def __iter__(self) -> Iterator[list[Any]]:
        return (_listed(indices) for _, indices, _ in self.requests())


def find_order(loader: DataLoader[Any], *, order_seed: int, seed: int) -> EpochOrders | SamplerOrder:
    """Return the order of the batches of a loader of torch, keyed by a seed.

    Args:
        loader: A loader with a batch sampler.
        order_seed: Decides the random order of a loader without a sampler.
        seed: Keys the random draws of samples and of a sampler.
    """
    batches = cast("Any", loader).batch_sampler
    samples: Any = getattr(batches, "sampler", None)
    if type(batches) is not BatchSampler or not _is_made_by_torch(samples, loader):
        return SamplerOrder(batches, seed)
    shuffle = type(samples) is RandomSampler
    return EpochOrders(len(samples), batches.batch_size, batches.drop_last, shuffle, order_seed, seed)


def _is_made_by_torch(sampler: Any, loader: Any) -> bool:
    """Whether this is the sampler that torch makes for a loader without a sampler, or equal to it."""
    if type(sampler) is SequentialSampler:
        return len(sampler) == len(loader.dataset)
    generator: object = getattr(sampler, "generator", None)
    if type(sampler) is not RandomSampler or generator is not loader.generator or sampler.replacement:
        return False
    return len(sampler) == len(sampler.data_source) == len(loader.dataset)


def _is_without_state(part: object) -> bool:
    """Whether an iterable keeps no state between iterations, and yields as many items as its length."""
    if type(part) is BatchSampler:
        return _is_without_state(part.sampler)
    return type(part) in _WITHOUT_STATE and getattr(part, "generator", None) is None


def _listed(indices: Any) -> list[Any]:
    return indices.tolist() if isinstance(indices, Tensor) else list(indices)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # torch does not annotate it
