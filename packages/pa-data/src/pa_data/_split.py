"""Which samples each process takes in each step, and the batches of one process in one epoch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from itertools import chain, repeat
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.data import Sampler
from typing_extensions import override

from pa_data._fetching import BatchRequest, listed
from pa_data.errors import DataError
from pa_data.orders._checks import check_count
from pa_data.orders._epoch_order import EpochOrder
from pa_data.rng import extend_key

__all__ = [
    "BatchSplit",
    "EpochBatches",
    "EpochPlan",
    "EvalSplit",
    "Split",
    "UpdateSplit",
]


class Split(Protocol):
    """How the positions of an epoch are dealt to the processes, one global batch a step.

    In each step each rank takes a contiguous piece, and every position is taken exactly once. Steps take consecutive
    positions, rank after rank; where batches are fixed only whole updates do.
    """

    @property
    def num_samples(self) -> int:
        """The number of samples of the whole epoch."""
        ...

    @property
    def batch_size(self) -> int:
        """The number of samples that one process takes in a full step; the mean where the order makes the batches."""
        ...

    @property
    def num_processes(self) -> int:
        """The number of processes that share each step."""
        ...

    @property
    def drop_last(self) -> bool:
        """Whether what does not fill an update at the end of the epoch is left out."""
        ...

    @property
    def fixed_batches(self) -> bool:
        """Whether updates are cut into numbered micro-batches, the same on any number of processes."""
        ...

    @property
    def start(self) -> int:
        """The number of samples of this epoch that are trained on already; the steps are counted from there."""
        ...

    @property
    def steps_per_update(self) -> int:
        """The number of steps of an update; 1 where the split makes no updates."""
        ...

    @property
    def steps_before(self) -> int:
        """The number of steps that lie before ``start``, in steps of this split."""
        ...

    @property
    def num_full_steps(self) -> int:
        """The number of steps, from ``start`` on, in which each process takes ``batch_size`` samples.

        They take consecutive positions.
        """
        ...

    def __len__(self) -> int:
        """Return the number of steps from ``start`` on."""
        ...

    def size(self, step: int) -> int:
        """Return the number of samples that all processes together take in a step, counted from 0."""
        ...

    def piece(self, step: int, rank: int) -> range:
        """Return the positions of the epoch that one process takes in a step; may be empty."""
        ...

    def update(self, step: int) -> range:
        """Return the positions of the update that a step belongs to."""
        ...

    def micro_batches(self, step: int, rank: int) -> tuple[range, int]:
        """Return the numbers of the micro-batches that one process takes of the update of a step, and how many it has.

        An empty range and 0 unless batches are fixed.
        """
        ...

    def resume_point(self, position: int) -> int:
        """Return the last position, up to this one, that may be the ``start`` of such a split."""
        ...


@dataclass(frozen=True)
class UpdateSplit:
    """The split of a training epoch into updates of as many samples on any number of processes.

    An update takes as few steps as its samples need, all of as equal size as possible; the last one of an epoch may
    have fewer samples, and steps. Each step is dealt in contiguous pieces, the larger ones first. If it has fewer
    samples than the processes have room for, ``t`` samples go to ``min(num_processes, max(1, t // 2))`` processes: none
    gets exactly one sample (for which batch normalisation raises an error) unless ``t`` or the batch size is 1. The
    others get an empty piece. With a batch size of 2, a piece may hold 3.

    With ``fixed_batches``, an update is cut by position into as few micro-batches of at most ``max_batch_size`` samples
    as possible, of as equal size as possible, the larger ones first. Each process takes a contiguous block of them,
    one a step; the blocks are as equal as possible, the larger ones first.

    Attributes:
        num_samples: The number of samples of the whole epoch.
        samples_per_update: The number of samples of an update.
        max_batch_size: The number of samples that one process takes in a step at the most.
        num_processes: The number of processes that share each step.
        drop_last: Leaves out the samples that do not fill an update of the whole epoch; where updates are single steps,
            of what is left of it, so that no step is smaller.
        start: The number of samples of this epoch that are trained on already; updates are counted from there. It need
            not be a multiple of ``samples_per_update`` unless batches are fixed, so another split can continue.
        max_batch_sizes: The number of samples that each process takes in a step at the most, where devices differ:
            steps are then dealt in proportion. Empty, the default, for ``max_batch_size`` on each.
        fixed_batches: Whether updates are cut into the same micro-batches on any number of processes.
        steps_per_update: The number of steps of an update.
        batch_size: The number of samples that one process takes in a step of an update, rounded up.
        num_full_steps: The number of steps, from ``start`` on, in which each process takes ``batch_size`` samples.

    Raises:
        DataError: If a number is out of its range, or ``start`` is within an update whose batches are fixed.

    Example:
        >>> split = UpdateSplit(num_samples=30, samples_per_update=20, max_batch_size=4, num_processes=3)
        >>> split.steps_per_update, [split.size(step) for step in range(len(split))]
        (2, [10, 10, 10])
        >>> [split.piece(1, rank) for rank in range(3)]
        [range(10, 14), range(14, 17), range(17, 20)]
        >>> unlike = UpdateSplit(30, 10, max_batch_size=8, num_processes=2, max_batch_sizes=(8, 2))
        >>> [unlike.piece(0, rank) for rank in range(2)]
        [range(0, 8), range(8, 10)]
        >>> fixed = UpdateSplit(30, 20, max_batch_size=4, num_processes=2, fixed_batches=True)
        >>> [fixed.piece(step, rank=0) for step in range(3)]
        [range(0, 4), range(4, 8), range(8, 12)]
        >>> [fixed.piece(step, rank=1) for step in range(3)]
        [range(12, 16), range(16, 20), range(20, 20)]
        >>> fixed.micro_batches(1, rank=1), fixed.update(1)
        ((range(3, 5), 5), range(0, 20))
    """

    num_samples: int
    samples_per_update: int
    max_batch_size: int
    num_processes: int
    _: KW_ONLY
    drop_last: bool = False
    start: int = 0
    max_batch_sizes: tuple[int, ...] = ()
    fixed_batches: bool = False
    steps_per_update: int = field(init=False, repr=False)
    batch_size: int = field(init=False, repr=False)
    num_full_steps: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Raise an error for numbers that describe no split."""
        for size in (self.max_batch_size, *self.max_batch_sizes):
            check_count("batch_size", size)
        check_count("num_processes", self.num_processes)
        check_count("samples_per_update", self.samples_per_update)
        check_count("num_samples", self.num_samples, minimum=0)
        if len(self.max_batch_sizes) not in (0, self.num_processes):
            sizes = f"max_batch_sizes={self.max_batch_sizes}"
            raise DataError(f"Each process needs a batch size: {self.num_processes} processes, and {sizes}.")
        if not 0 <= self.start <= self.num_samples:
            raise DataError(
                f"The position is not within the epoch. Got start={self.start} in an epoch of {self.num_samples} "
                "samples. Pass the number of samples of this epoch that were trained on already. If the dataset "
                "became smaller since then, begin the epoch again with start=0."
            )
        if self.resume_point(self.start) != self.start:
            raise DataError(
                f"The position is not where an update begins. Got start={self.start}, with updates of "
                f"{self.samples_per_update} samples. Keep samples_per_update as it was when the position was "
                "counted, or begin the epoch with start=0."
            )
        steps = self._steps_for(self.samples_per_update)
        object.__setattr__(self, "steps_per_update", steps)
        object.__setattr__(self, "batch_size", -(-self.samples_per_update // (steps * self.num_processes)))
        object.__setattr__(self, "num_full_steps", self._updates_and_rest[0] * steps if self._has_full_steps() else 0)

    @cached_property
    def _updates_and_rest(self) -> tuple[int, int]:
        # Within an update of several steps a run is interrupted itself; within a single step another split was.
        counted_from = self.start if self.steps_per_update == 1 else 0
        dropped = (self.num_samples - counted_from) % self.samples_per_update if self.drop_last else 0
        return divmod(max(0, self.num_samples - dropped - self.start), self.samples_per_update)

    @cached_property
    def _num_steps(self) -> int:
        updates, rest = self._updates_and_rest
        return updates * self.steps_per_update + self._steps_for(rest)

    @property
    def steps_before(self) -> int:
        """The number of steps that lie before ``start``, in steps of this split."""
        updates, rest = divmod(self.start, self.samples_per_update)
        return updates * self.steps_per_update + self._steps_for(rest)

    def _steps_for(self, samples: int) -> int:
        return -(-samples // (sum(self.max_batch_sizes) or self.max_batch_size * self.num_processes))

    def __len__(self) -> int:
        """Return the number of steps from ``start`` on."""
        return self._num_steps

    def _has_full_steps(self) -> bool:
        """Whether all steps of an update are full."""
        if self.steps_per_update * self.num_processes * self.batch_size != self.samples_per_update:
            return False
        if self.fixed_batches:
            is_consecutive = 1 in (self.num_processes, self.steps_per_update)
            return is_consecutive and self.batch_size == self.max_batch_size
        return not self.max_batch_sizes and (self.batch_size > 1 or self.max_batch_size == 1)

    def size(self, step: int) -> int:
        """Return the number of samples that all processes together take in a step.

        Raises:
            IndexError: If there is no such step.
        """
        if self.fixed_batches:
            return sum(len(self.piece(step, rank)) for rank in range(self.num_processes))
        return len(self._positions(step))

    def piece(self, step: int, rank: int) -> range:
        """Return the positions of the epoch that one process takes in a step; empty for some where there are few.

        Raises:
            IndexError: If there is no such step or rank.
        """
        if self.fixed_batches:
            update, number = self.update(step), step % self.steps_per_update
            block, of_update = self.micro_batches(step, rank)
            if number >= len(block):
                return range(update.stop, update.stop)
            return _even_piece(update, of_update, block[number])
        _check_within("rank", rank, self.num_processes)
        positions = self._positions(step)
        if self.max_batch_sizes:
            return _piece_in_proportion(positions, self.max_batch_sizes, rank)
        ranks = min(self.num_processes, max(1, len(positions) // (1 if self.max_batch_size == 1 else 2)))
        return _even_piece(positions, ranks, rank) if rank < ranks else range(positions.stop, positions.stop)

    def update(self, step: int) -> range:
        """Return the positions of the update that a step belongs to.

        Raises:
            IndexError: If there is no such step.
        """
        _check_within("step", step, self._num_steps)
        updates, rest = self._updates_and_rest
        update = step // self.steps_per_update
        begin = self.start + update * self.samples_per_update
        return range(begin, begin + (self.samples_per_update if update < updates else rest))

    def _positions(self, step: int) -> range:
        update = self.update(step)
        return _even_piece(update, self._steps_for(len(update)), step % self.steps_per_update)

    def micro_batches(self, step: int, rank: int) -> tuple[range, int]:
        """Return the numbers of the micro-batches that one process takes of the update of a step, and how many it has.

        Raises:
            IndexError: If there is no such step or rank.
        """
        _check_within("rank", rank, self.num_processes)
        number = -(-len(self.update(step)) // self.max_batch_size) if self.fixed_batches else 0
        return _even_piece(range(number), self.num_processes, rank), number

    def resume_point(self, position: int) -> int:
        """Return the last position, up to this one, that may be the ``start`` of such a split."""
        between_updates = position in (0, self.num_samples) or not self.fixed_batches
        return position if between_updates else position - position % self.samples_per_update


class _WithoutUpdates:
    """The parts that all splits share whose steps do not belong to larger updates."""

    steps_per_update: int = 1
    fixed_batches: bool = False

    def update(self: Split, step: int) -> range:
        """Return the positions of a step.

        Raises:
            IndexError: If there is no such step.
        """
        begin = self.piece(step, 0).start
        return range(begin, begin + self.size(step))

    def micro_batches(self, step: int, rank: int) -> tuple[range, int]:
        """Return an empty range and 0: micro-batches have no numbers."""
        return range(0), 0


@dataclass(frozen=True)
class EvalSplit(_WithoutUpdates):
    """The split of an evaluation: every sample once, and every process takes part in every step.

    Full global batches come first. A remainder with fewer samples than processes borrows from the step before
    so that each process has one; with a batch size of 1, where nothing can be borrowed, it is merged into the
    step before and some pieces hold 2. Each step is cut into contiguous pieces of as equal size as possible,
    so results that are gathered rank after rank come back in the order of the dataset.

    Attributes:
        num_samples: The number of samples of the whole evaluation, at least one for each process.
        batch_size: The number of samples that one process takes in a full step.
        num_processes: The number of processes that share each step.
        drop_last: Leaves out the remainder.

    Raises:
        DataError: If a number is out of its range, or there are fewer samples than processes.

    Example:
        >>> split = EvalSplit(num_samples=17, batch_size=4, num_processes=2)
        >>> [split.size(step) for step in range(len(split))]
        [8, 7, 2]
        >>> split.piece(1, rank=0), split.piece(1, rank=1), split.piece(2, rank=1)
        (range(8, 12), range(12, 15), range(16, 17))
    """

    num_samples: int
    batch_size: int
    num_processes: int
    _: KW_ONLY
    drop_last: bool = False

    def __post_init__(self) -> None:
        """Raise an error for numbers that describe no split."""
        _check_sizes(self)
        if self.num_samples < self.num_processes:
            raise DataError(
                f"There are fewer samples to evaluate on than processes. Got {self.num_samples} samples for "
                f"{self.num_processes} processes. Evaluate on more samples, or with fewer processes."
            )

    @cached_property
    def _global_batch(self) -> int:
        return self.batch_size * self.num_processes

    @cached_property
    def _remainder(self) -> int:
        return 0 if self.drop_last else self.num_samples % self._global_batch

    @cached_property
    def _borrowed(self) -> int:
        """The number of samples that the last step takes from the step before it."""
        if self._remainder == 0 or self.batch_size == 1:
            return 0
        return max(0, self.num_processes - self._remainder)

    @cached_property
    def _num_steps(self) -> int:
        has_step_of_its_own = self._remainder > 0 and self.batch_size > 1
        return self.num_samples // self._global_batch + has_step_of_its_own

    def _end(self, step: int) -> int:
        """The position where a step ends; 0 for the one before the first."""
        regular_end = (step + 1) * self._global_batch
        if step == self._num_steps - 1:
            return regular_end if self.drop_last else self.num_samples
        return regular_end - self._borrowed if step == self._num_steps - 2 else regular_end

    def __len__(self) -> int:
        """Return the number of steps."""
        return self._num_steps

    @property
    def num_full_steps(self) -> int:
        """The number of steps, from the first one on, in which each process takes ``batch_size`` samples."""
        if self._remainder == 0:
            return self._num_steps
        return self._num_steps - (2 if self._borrowed > 0 else 1)

    def size(self, step: int) -> int:
        """Return the number of samples that all processes together take in a step.

        Raises:
            IndexError: If there is no such step.
        """
        _check_within("step", step, self._num_steps)
        return self._end(step) - self._begin(step)

    def piece(self, step: int, rank: int) -> range:
        """Return the positions that one process takes in a step; never empty.

        Raises:
            IndexError: If there is no such step or rank.
        """
        _check_within("rank", rank, self.num_processes)
        _check_within("step", step, self._num_steps)
        return _even_piece(range(self._begin(step), self._end(step)), self.num_processes, rank)

    def _begin(self, step: int) -> int:
        return self._end(step - 1) if step > 0 else 0

    @property
    def start(self) -> int:
        """An evaluation begins at its first sample."""
        return 0

    @property
    def steps_before(self) -> int:
        """An evaluation begins at its first sample."""
        return 0

    def resume_point(self, position: int) -> int:
        """Return 0, the only place where an evaluation begins."""
        return 0


@dataclass(frozen=True, eq=False)
class BatchSplit(_WithoutUpdates):
    """The split of a training epoch whose order makes the batches: in each step, the next batch for each process.

    The order determines the batches, regardless of the number of processes. In the last step there may be fewer batches
    than processes: the first ranks have them, and the others an empty piece.

    Attributes:
        batch_ends: The positions at which the batches of the whole epoch end, increasing, int64 on the CPU.
        num_processes: The number of processes that share each step.
        start: The number of samples of this epoch that are trained on already, 0 or one of ``batch_ends``; the steps
            are counted from there.

    Raises:
        DataError: If there is no process, or ``start`` is within a batch.

    Example:
        >>> split = BatchSplit(torch.tensor([2, 7, 9]), num_processes=2)
        >>> [split.size(step) for step in range(len(split))]
        [7, 2]
        >>> split.piece(0, rank=1), split.piece(1, rank=0), split.piece(1, rank=1)
        (range(2, 7), range(7, 9), range(9, 9))
    """

    batch_ends: Tensor
    num_processes: int
    _: KW_ONLY
    start: int = 0

    def __post_init__(self) -> None:
        """Raise an error for numbers that describe no split."""
        _check_sizes(self)
        if self.start != self._end(self._first):
            raise DataError(
                f"The position is not where a batch of the order ends. Got start={self.start}, within batch "
                f"{self._first} of {len(self.batch_ends)}. Begin the epoch again with start=0, if the order is not "
                "the one that the position was counted in."
            )

    @cached_property
    def _first(self) -> int:
        """The number of batches that end at ``start`` or before it."""
        return int(torch.searchsorted(self.batch_ends, self.start, right=True))

    @property
    def steps_before(self) -> int:
        """The number of steps that lie before ``start``, in steps of this number of processes."""
        return -(-self._first // self.num_processes)

    def resume_point(self, position: int) -> int:
        """Return the last position, up to this one, at which a batch ends, or 0."""
        return self._end(int(torch.searchsorted(self.batch_ends, position, right=True)))

    def _end(self, num_batches: int) -> int:
        """The position after the first batches of the epoch."""
        return 0 if num_batches == 0 else int(self.batch_ends[min(num_batches, len(self.batch_ends)) - 1])

    @property
    def num_samples(self) -> int:
        """The number of samples of the whole epoch."""
        return self._end(len(self.batch_ends))

    @property
    def batch_size(self) -> int:
        """The mean number of samples in a batch, rounded."""
        return max(1, round(self.num_samples / max(1, len(self.batch_ends))))

    @property
    def drop_last(self) -> bool:
        """Nothing is left out."""
        return False

    @property
    def num_full_steps(self) -> int:
        """No two batches need be of one size."""
        return 0

    @cached_property
    def _num_steps(self) -> int:
        return -((self._first - len(self.batch_ends)) // self.num_processes)

    def __len__(self) -> int:
        """Return the number of steps from ``start`` on."""
        return self._num_steps

    def size(self, step: int) -> int:
        """Return the number of samples that all processes together take in a step.

        Raises:
            IndexError: If there is no such step.
        """
        _check_within("step", step, self._num_steps)
        first = self._first + step * self.num_processes
        return self._end(first + self.num_processes) - self._end(first)

    def piece(self, step: int, rank: int) -> range:
        """Return the positions of the epoch that one process takes in a step; empty for some in the last.

        Raises:
            IndexError: If there is no such step or rank.
        """
        _check_within("rank", rank, self.num_processes)
        _check_within("step", step, self._num_steps)
        batch = self._first + step * self.num_processes + rank
        return range(self._end(batch), self._end(batch + 1))


def _piece_in_proportion(positions: range, most: tuple[int, ...], rank: int) -> range:
    """Deal a step in proportion to what each rank takes at the most; only the last ranks are left without a sample.

    As in an even deal, no rank gets exactly one sample where there is room for two.
    """
    size = len(positions)
    for at_least in (min(2, size, *most), 1):
        ranks = min(len(most), size // at_least)
        rest = size - ranks * at_least
        room = [one - at_least for one in most[:ranks]]
        if rest <= sum(room):
            break

    def begin(of: int) -> int:
        share = -(-rest * sum(room[:of]) // max(sum(room), 1))
        return positions.start + min(of, ranks) * at_least + share

    return range(begin(rank), begin(rank + 1))


def _even_piece(positions: range, parts: int, part: int) -> range:
    """Cut positions into contiguous parts, the larger ones first; return one part."""
    quotient, larger_parts = divmod(len(positions), parts)
    first = part * quotient + min(part, larger_parts)
    return positions[first : first + quotient + (part < larger_parts)]


def _check_sizes(split: Split) -> None:
    check_count("num_processes", split.num_processes)
    check_count("batch_size", split.batch_size)
    check_count("num_samples", split.num_samples, minimum=0)


def _check_within(name: str, number: int, count: int) -> None:
    if not 0 <= number < count:
        raise IndexError(f"{name} {number} is not among the {count} of this split, counted from 0")


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
        """The number of steps in which this process takes a sample."""
        return self._last_update * self._batches_in(0) + self._batches_in(self._last_update)

    def step_after(self, batches: int) -> int:
        """Return the step that comes after some batches of this process.

        An update is over with the last batch that this process has of it.
        """
        of_update, steps = self._batches_in(0), self.split.steps_per_update
        update = min(batches // max(1, of_update), self._last_update)
        more = batches - update * of_update
        is_over = 0 < more == self._batches_in(update)
        return min((update + 1) * steps, len(self.split)) if is_over else update * steps + more

    @property
    def _last_update(self) -> int:
        return max(0, len(self.split) - 1) // self.split.steps_per_update

    def _batches_in(self, update: int) -> int:
        """The number of batches of this process in an update; all updates but the last one have as many."""
        split, first = self.split, update * self.split.steps_per_update
        steps = range(first, min(first + split.steps_per_update, len(split)))
        return sum(1 for step in steps if split.piece(step, self.rank))

    def indices(self) -> Iterator[Tensor]:
        """Return the dataset indices of each batch; a step in which this process takes nothing is left out."""
        num_full_steps = self.split.num_full_steps
        global_batch = self.split.batch_size * self.split.num_processes
        at_once = max(1, min(_STEPS_AT_ONCE, _POSITIONS_AT_ONCE // global_batch))
        blocks = (
            self._of_full_steps(first, min(at_once, num_full_steps - first))
            for first in range(0, num_full_steps, at_once)
        )
        rest = (self.order.indices(piece.start, piece.stop) for piece in self.pieces(num_full_steps))
        return chain(chain.from_iterable(blocks), rest)

    def pieces(self, first: int = 0) -> Iterator[range]:
        """What this process takes, from a step on, without the steps in which it takes nothing."""
        return filter(len, (self.split.piece(step, self.rank) for step in range(first, len(self.split))))

    def place_after(self, batches: int) -> int | None:
        """Return the position at which a run resumes after some batches of this process; None at the end."""
        step = self.step_after(batches)
        return None if step == len(self.split) else self.split.resume_point(self.split.piece(step, 0).start)

    def describe_awaited(self, batches: int) -> str:
        """Return what a worker that died after some batches was to fetch, or another one."""
        piece = self.split.piece(self.step_after(batches), self.rank)
        indices = [int(index) for index in self.order.indices(piece.start, piece.stop)]
        return (
            f"A worker died while batch {batches + 1} of this process was awaited, of the samples {indices}; it "
            "may have been at one of the next batches. The system ends a process for want of memory, and native code "
            "may crash: num_workers=0 fetches in the main process."
        )

    def ahead(self) -> Iterator[range]:
        """Yield what is read of a stream with each batch, see `BatchRequest`.

        So many that all processes find out in the same update if the stream has more or fewer samples:
        with the first batch of an update all of it, and with the last batch the end.
        """
        split, rank, num_batches = self.split, self.rank, self.num_batches
        steps = (step for step in range(len(split)) if split.piece(step, rank))
        for number, step in enumerate(steps, start=1):
            keep = read = split.piece(step, rank).stop
            if split.fixed_batches and split.num_processes > 1:
                last, first = len(split) - 1, step - step % split.steps_per_update
                block, _ = split.micro_batches(step, rank)
                keep, read = split.piece(first + len(block) - 1, rank).stop, split.update(step).stop
                if split.micro_batches(last, rank)[1] < split.num_processes and read >= split.update(last).start:
                    keep = read = sys.maxsize  # some have their last batch before the last update
            yield range(keep, sys.maxsize if number == num_batches else read)

    def _of_full_steps(self, first: int, number: int) -> tuple[Tensor, ...]:
        """The batches of some steps that follow each other, cut from one tensor: no two share an element."""
        split, begin = self.split, self.split.piece(first, 0).start
        indices = self.order.indices(begin, begin + number * split.batch_size * split.num_processes)
        return indices.view(number, split.num_processes, split.batch_size)[:, self.rank].unbind()


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
        reads_stream: Whether the samples come from a stream.

    Attributes:
        plan: The plan of the chosen epoch, from the chosen position on.
        whole_epoch: The plan of the chosen epoch from its first position on.
        sampler: Takes the epoch that a trainer chooses, which looks for ``set_epoch`` here.
    """

    def __init__(self, plan: EpochPlan, *, reads_stream: bool = False) -> None:
        self._reads_stream = reads_stream
        self.plan: EpochPlan = plan
        self.whole_epoch: EpochPlan = plan
        self.sampler: EpochRequest = EpochRequest()

    def __len__(self) -> int:
        """Return the number of batches of the whole of the chosen epoch."""
        return self.whole_epoch.num_batches

    def requests(self) -> Iterator[BatchRequest]:
        """Return what each batch is made from."""
        plan = self.plan
        if self._reads_stream:
            return zip(repeat(plan.key), plan.indices(), plan.ahead(), strict=False)
        if not plan.order.repeats:
            return zip(repeat(plan.key), plan.indices(), repeat(None), strict=False)
        return zip(repeat(plan.key), plan.indices(), plan.pieces(), strict=False)

    @override
    def __iter__(self) -> Iterator[list[int]]:
        return (listed(indices) for _, indices, _ in self.requests())
