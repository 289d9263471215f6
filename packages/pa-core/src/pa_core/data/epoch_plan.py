"""The batches of one process in one epoch, and the samplers that follow the epoch a loader has chosen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor
from torch.utils.data import Sampler
from typing_extensions import override

from pa_core.data.fetching import BatchRequest
from pa_core.data.order import EpochOrder, epoch_order, index_list
from pa_core.data.split import Split
from pa_core.rng import mix

__all__ = ["EpochBatches", "EpochPlan", "WorkerRequests"]

_STEPS_AT_ONCE = 64
_POSITIONS_AT_ONCE = 65_536


@dataclass(frozen=True)
class EpochPlan:
    """Everything that decides the batches of one process in one epoch.

    Attributes:
        split: What each process takes in each step.
        rank: The number of this process.
        shuffle: Whether the epoch has a random order of its own.
        seed: The seed of the run.
        epoch: The number of the epoch.
        algorithm: The name of the order to reproduce, or None for the default.
    """

    split: Split
    rank: int
    shuffle: bool
    seed: int
    epoch: int
    algorithm: str | None

    def __post_init__(self) -> None:
        """Refuse an unknown algorithm now and not with the first batch."""
        _ = self.order

    @cached_property
    def order(self) -> EpochOrder:
        """The order of the epoch."""
        return epoch_order(
            self.split.num_samples,
            seed=self.seed,
            epoch=self.epoch,
            shuffle=self.shuffle,
            algorithm=self.algorithm,
        )

    @cached_property
    def key(self) -> int:
        """The key of the epoch's random draws, to be extended by the index of a sample."""
        return mix(self.seed, self.epoch)

    @property
    def num_batches(self) -> int:
        """The number of steps in which this process takes a sample; only in the last one it may not."""
        num_steps = len(self.split)
        if num_steps > 0 and not self.split.piece(num_steps - 1, self.rank):
            return num_steps - 1
        return num_steps

    def batches(self) -> Iterator[Tensor]:
        """Yield the dataset indices of each batch; a step in which this process takes nothing is left out."""
        num_full_steps = self.split.num_full_steps
        global_batch = self.split.batch_size * self.split.num_processes
        at_once = max(1, min(_STEPS_AT_ONCE, _POSITIONS_AT_ONCE // global_batch))
        for first in range(0, num_full_steps, at_once):
            yield from self._of_full_steps(first, min(at_once, num_full_steps - first))
        for step in range(num_full_steps, len(self.split)):
            piece = self.split.piece(step, self.rank)
            if piece:
                yield self.order.indices(piece.start, piece.stop)

    def _of_full_steps(self, first: int, number: int) -> tuple[Tensor, ...]:
        """The batches of some steps that follow each other, cut from one tensor: no two share an element."""
        split, begin = self.split, self.split.piece(first, 0).start
        indices = self.order.indices(begin, begin + number * split.batch_size * split.num_processes)
        return indices.view(number, split.num_processes, split.batch_size)[:, self.rank].unbind()


class EpochBatches(Sampler[list[int]]):
    """The batch sampler of a loader: the dataset indices of each batch of the chosen epoch.

    An iterator keeps the plan that it began with; a plan chosen later is for the next one.

    Args:
        plan: The plan of a whole epoch.

    Attributes:
        plan: The plan of the chosen epoch, from the chosen position on.
    """

    def __init__(self, plan: EpochPlan) -> None:
        self.plan: EpochPlan = plan
        self._batches_per_epoch = plan.num_batches

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch."""
        return self._batches_per_epoch

    @override
    def __iter__(self) -> Iterator[list[int]]:
        return (index_list(indices) for indices in self.plan.batches())


class WorkerRequests(Sampler[BatchRequest]):
    """The same batches as requests to workers."""

    def __init__(self, batches: EpochBatches) -> None:
        self._batches = batches

    @override
    def __iter__(self) -> Iterator[BatchRequest]:
        key = self._batches.plan.key
        return ((key, indices) for indices in self._batches)
