"""The batches of one process in one epoch, and the samplers that follow the epoch a loader has chosen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any

from torch import Tensor
from torch.utils.data import Sampler
from typing_extensions import override

from pa_data._fetching import BatchRequest
from pa_data._split import EvalSplit, Split
from pa_data.orders._epoch_order import EpochOrder, index_list
from pa_data.rng import extend_key

__all__ = ["EpochBatches", "EpochPlan", "EpochProgress", "WorkerRequests"]

_POSITIONS = -2  # extends the key of an epoch whose draws are keyed by position
_STEPS_AT_ONCE = 64
_POSITIONS_AT_ONCE = 65_536


@dataclass(frozen=True)
class EpochPlan:
    """Everything that decides the batches of one process in one epoch.

    Attributes:
        order: The order of the epoch.
        split: What each process takes in each step.
        rank: The number of this process.
        epoch_key: The key of the epoch, see `pa_data.rng.mix`.
    """

    order: EpochOrder
    split: Split
    rank: int
    epoch_key: int

    @cached_property
    def key(self) -> int:
        """The key of the epoch's random draws, to be extended by the index of a sample, or by its position."""
        return extend_key(self.epoch_key, _POSITIONS) if self.order.repeats else self.epoch_key

    @property
    def num_batches(self) -> int:
        """The number of steps in which this process takes a sample; only in the last one it may not."""
        num_steps = len(self.split)
        if num_steps > 0 and not self.split.piece(num_steps - 1, self.rank):
            return num_steps - 1
        return num_steps

    def batches(self) -> Iterator[tuple[Tensor, range | None]]:
        """Yield the dataset indices of each batch, and what keys the draws of its samples if not the indices do.

        A step in which this process takes nothing is left out.
        """
        if not self.order.repeats:
            return zip(self._indices(), repeat(None), strict=False)
        pieces = (self.split.piece(step, self.rank) for step in range(self.num_batches))
        return zip(self._indices(), pieces, strict=True)

    def _indices(self) -> Iterator[Tensor]:
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


class EpochProgress:
    """How far an iterator is in its epoch.

    Args:
        plan: What it iterates.
    """

    def __init__(self, plan: EpochPlan) -> None:
        self._plan = plan
        self._steps = 0

    def count(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of the iterator, counting them."""
        for batch in batches:
            self._steps += 1
            yield batch
        self._steps = len(self._plan.split)

    def place(self) -> tuple[bool, int]:
        """Return whether the epoch has ended, and, if not, the number of its samples that were taken."""
        split = self._plan.split
        if self._steps == len(split):
            return True, 0
        return False, 0 if isinstance(split, EvalSplit) else split.piece(self._steps, 0).start


class EpochRequest:
    """Keeps the epoch that was chosen until the loader begins to iterate; it does not keep the loader alive."""

    def __init__(self) -> None:
        self.epoch: int | None = None

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class EpochBatches(Sampler[list[int]]):
    """The batch sampler of a loader: the dataset indices of each batch of the chosen epoch.

    An iterator keeps the plan that it began with; a plan chosen later is for the next one.

    Args:
        plan: The plan of a whole epoch.

    Attributes:
        plan: The plan of the chosen epoch, from the chosen position on.
        whole_epoch: The plan of the chosen epoch from its first position on.
        sampler: Takes the epoch that a trainer chooses, which looks for ``set_epoch`` here.
    """

    def __init__(self, plan: EpochPlan) -> None:
        self.plan: EpochPlan = plan
        self.whole_epoch: EpochPlan = plan
        self.sampler: EpochRequest = EpochRequest()

    def __len__(self) -> int:
        """Return the number of batches of the whole of the chosen epoch."""
        return self.whole_epoch.num_batches

    @override
    def __iter__(self) -> Iterator[list[int]]:
        return (index_list(indices) for indices, _ in self.plan.batches())


class WorkerRequests(Sampler[BatchRequest]):
    """The same batches as requests to workers."""

    def __init__(self, batches: EpochBatches) -> None:
        self._batches = batches

    @override
    def __iter__(self) -> Iterator[BatchRequest]:
        plan = self._batches.plan
        return ((plan.key, index_list(indices), draws) for indices, draws in plan.batches())
