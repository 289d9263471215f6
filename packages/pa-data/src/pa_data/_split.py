"""Divides the positions of an epoch among processes and steps, and makes the batches of a process."""

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
from pa_data.errors import DataError, EmptyDatasetError
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
    """A division of the positions of an epoch among the processes, with a global batch in each step.

    A position is the place of a sample in the order of the epoch, from 0 to ``num_samples - 1``. In each step each
    process takes a contiguous range of positions, which may be empty, and over the epoch every position is taken
    exactly once. Without fixed batches, the positions of each step are consecutive, rank after rank; with fixed
    batches, only the positions of a whole update are. An update is the group of steps before one ``optimizer.step()``.

    ``UpdateSplit``, ``BatchSplit`` and ``EvalSplit`` are splits, and ``KeyedDataLoader.split`` returns one of them. Use
    this protocol as the type of an argument that accepts any split, or call its methods to find out which samples each
    process takes.

    Example:
        >>> from pa_data import EvalSplit, Split
        >>> split: Split = EvalSplit(num_samples=10, batch_size=3, num_processes=2)
        >>> [[split.piece(step, rank) for rank in range(2)] for step in range(len(split))]
        [[range(0, 3), range(3, 6)], [range(6, 8), range(8, 10)]]
    """

    @property
    def num_samples(self) -> int:
        """The number of samples of the whole epoch over all processes, from its first sample on, an integer.

        It does not depend on ``start``, and includes samples that ``drop_last`` leaves out.
        """
        ...

    @property
    def batch_size(self) -> int:
        """The number of samples that a process takes in a full step, an integer of at least 1.

        If the order makes batches of different sizes, it is their rounded mean.
        """
        ...

    @property
    def num_processes(self) -> int:
        """The number of processes that share each step, an integer of at least 1.

        Ranks count from 0 to ``num_processes - 1``.
        """
        ...

    @property
    def drop_last(self) -> bool:
        """Whether samples at the end of the epoch that do not fill an update or a global batch are left out.

        A boolean. If False, every sample is used, and the last update or step may be smaller.
        """
        ...

    @property
    def fixed_batches(self) -> bool:
        """Whether updates are cut into numbered micro-batches, which are the same on any number of processes.

        A boolean. A micro-batch is the batch of one process in one step. If False, ``micro_batches`` returns no
        numbers, and the batches depend on the number of processes.
        """
        ...

    @property
    def start(self) -> int:
        """The number of samples of this epoch that all processes together took before step 0, an integer from 0.

        It is 0 for a whole epoch and for an evaluation. In a resumed epoch, it is the position that was saved, for
        example 20 after two updates of 10 samples: step 0 then begins with the sample at position 20.
        """
        ...

    @property
    def steps_per_update(self) -> int:
        """The number of steps of a full update, an integer: 1 if each step is an update.

        It is the number of batches whose gradients a loop accumulates. The last update of an epoch may have fewer
        steps.
        """
        ...

    @property
    def steps_before(self) -> int:
        """The number of steps into which this split would have divided the samples before ``start``, an integer.

        It is 0 if ``start`` is 0. Add it to a step to get the step number within the whole epoch, for example for a
        progress bar.
        """
        ...

    @property
    def num_full_steps(self) -> int:
        """The number of steps, from ``start`` on, in which each process takes ``batch_size`` consecutive samples.

        These steps come first, so a loader can read the indices of several of them at once. The number is 0 if the
        sizes vary.
        """
        ...

    def __len__(self) -> int:
        """Return the number of steps from ``start`` on."""
        ...

    def size(self, step: int) -> int:
        """Return the number of samples that all processes together take in a step.

        You call it to weight the loss of a step, or to count samples. The number is at least 1.

        Args:
            step: The step number, from 0 to ``len(split) - 1``. In a resumed epoch, step 0 is the first step after
                ``start``.

        Returns:
            The number of samples.

        Raises:
            IndexError: There is no such step.

        Example:
            >>> from pa_data import EvalSplit
            >>> EvalSplit(num_samples=10, batch_size=3, num_processes=2).size(1)
            4
        """
        ...

    def piece(self, step: int, rank: int) -> range:
        """Return the positions in the epoch that a process takes in a step.

        You call it to find out which samples form a batch. A position is the place of a sample in the order of the
        epoch, from 0 to ``num_samples - 1``; ``EpochOrder.indices`` translates positions to dataset indices. A loader
        skips a step in which the range of its process is empty.

        Args:
            step: The step number, from 0 to ``len(split) - 1``. In a resumed epoch, step 0 is the first step after
                ``start``.
            rank: The rank of the process, from 0 to ``num_processes - 1``.

        Returns:
            Consecutive positions, counted from the beginning of the epoch. The range may be empty.

        Raises:
            IndexError: There is no such step or rank.

        Example:
            >>> from pa_data import EvalSplit
            >>> EvalSplit(num_samples=10, batch_size=3, num_processes=2).piece(0, rank=1)
            range(3, 6)
        """
        ...

    def update(self, step: int) -> range:
        """Return the positions of the update that contains a step.

        You call it to weight the loss of a step, which counts ``split.size(step) / len(split.update(step))`` in the
        mean over the update; ``split.size(step)`` is the number of samples of the step. A position is the place of a
        sample in the order of the epoch.

        Args:
            step: The step number, from 0 to ``len(split) - 1``. Step 0 is the first step of this split: in a resumed
                epoch, it follows the ``start`` samples that have already been trained on.

        Returns:
            Consecutive positions, counted from the beginning of the epoch: the positions of all processes in all steps
            of the update, at least one.

        Raises:
            IndexError: There is no such step.

        Example:
            >>> from pa_data import UpdateSplit
            >>> split = UpdateSplit(num_samples=40, samples_per_update=20, max_batch_size=5, num_processes=2)
            >>> split.update(0), split.update(1), split.update(2)
            (range(0, 20), range(0, 20), range(20, 40))
        """
        ...

    def micro_batches(self, step: int, rank: int) -> tuple[range, int]:
        """Return the numbers of the micro-batches of a process in the update of a step, and how many the update has.

        With fixed batches, an update is cut into numbered micro-batches in the same way on any number of processes, and
        each process takes consecutive numbers, one in each step. You call it to add up gradients in the order of these
        numbers, so that the sum is the same on any number of processes.

        Args:
            step: The number of any step of the update, from 0 to ``len(split) - 1``. In a resumed epoch, step 0 is the
                first step after ``start``.
            rank: The rank of the process, from 0 to ``num_processes - 1``.

        Returns:
            The numbers of the micro-batches of this process, and the number of micro-batches of the whole update; an
            empty range and 0 without fixed batches.

        Raises:
            IndexError: There is no such step or rank.

        Example:
            >>> from pa_data import UpdateSplit
            >>> split = UpdateSplit(40, 20, max_batch_size=5, num_processes=2, fixed_batches=True)
            >>> split.micro_batches(0, rank=1)
            (range(2, 4), 4)
        """
        ...

    def resume_point(self, position: int) -> int:
        """Return the largest position up to the given position that may be the ``start`` of such a split.

        You call it before you save or use a position, because with fixed batches a run can only resume between two
        updates or two batches. The result does not depend on the ``start`` of this split.

        Args:
            position: A position in the epoch, from 0 to ``num_samples``.

        Returns:
            The position at which a resumed run can begin, at most ``position``.

        Example:
            >>> from pa_data import UpdateSplit
            >>> split = UpdateSplit(40, 20, max_batch_size=5, num_processes=2, fixed_batches=True)
            >>> split.resume_point(27)
            20
        """
        ...


@dataclass(frozen=True)
class UpdateSplit:
    """Divides a training epoch into updates that have the same number of samples on any number of processes.

    Use it to keep the effective batch size, the number of samples of one ``optimizer.step()``, when the number of GPUs
    changes. ``KeyedDataLoader`` makes it for training; create it yourself in your own loader. If the order makes the
    batches, use ``BatchSplit``; for an evaluation, use ``EvalSplit``.

    An update takes as few steps as its samples need, of nearly equal size; the last update of an epoch may have fewer
    samples and steps. Each step is divided into contiguous ranges of positions, the larger ranges first. If a step has
    ``t`` samples, fewer than the processes have room for, they are divided among ``min(num_processes, max(1, t // 2))``
    processes, and the other processes get an empty range. So no process gets exactly one sample, for which batch
    normalization raises an error, unless ``t`` or the batch size is 1. With a batch size of 2, a range may have 3
    samples.

    With ``fixed_batches``, an update is cut into micro-batches by position alone: as few as possible, each with at most
    ``max_batch_size`` samples, of nearly equal size, with the larger micro-batches first. Each process takes a
    contiguous block of micro-batches, one in each step. So the micro-batches are the same on any number of processes.

    Attributes:
        num_samples: The number of samples of the whole epoch.
        samples_per_update: The number of samples of an update, over all processes and steps.
        max_batch_size: The largest number of samples of a process in a step.
        num_processes: The number of processes that share each step.
        drop_last: Whether to leave out the samples that do not fill an update. The default is False, so that every
            sample is used. If an update is a single step, the samples are counted from ``start``, so that no step is
            smaller; otherwise, they are counted from the beginning of the epoch.
        start: The number of samples of this epoch that have already been trained on. The default is 0. It need not be a
            multiple of ``samples_per_update`` unless batches are fixed, so that a run can continue with a different
            split.
        max_batch_sizes: The largest number of samples of each process in a step, by rank, if their devices differ;
            steps are then divided in proportion. The default, an empty tuple, means ``max_batch_size`` for each
            process.
        fixed_batches: Whether micro-batches are the same on any number of processes. The default is False, which
            divides steps more evenly.
        steps_per_update: The number of steps of a full update. It is computed, not passed.
        batch_size: The number of samples of a process in a step of a full update, rounded up. It is computed, not
            passed.
        num_full_steps: The number of steps, from ``start`` on, in which each process takes ``batch_size`` samples. It
            is computed, not passed.

    Raises:
        DataError: A number is out of its range, ``max_batch_sizes`` does not have a number for each process, or
            ``start`` is within an update with fixed batches.

    Example:
        >>> from pa_data import UpdateSplit
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
        """Raise an error for numbers out of range."""
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
        # Within an update of several steps the run itself was interrupted; within a single step a different split was.
        counted_from = self.start if self.steps_per_update == 1 else 0
        dropped = (self.num_samples - counted_from) % self.samples_per_update if self.drop_last else 0
        return divmod(max(0, self.num_samples - dropped - self.start), self.samples_per_update)

    @cached_property
    def _num_steps(self) -> int:
        updates, rest = self._updates_and_rest
        return updates * self.steps_per_update + self._steps_for(rest)

    @property
    def steps_before(self) -> int:
        """The number of steps into which this split would have divided the samples before ``start``, an integer.

        It is 0 if ``start`` is 0. Add it to a step to get the step number within the whole epoch, for example for a
        progress bar. For 25 samples in updates of 10 on 2 processes with 5 samples each, it is 1 with ``start=10``.
        """
        updates, rest = divmod(self.start, self.samples_per_update)
        return updates * self.steps_per_update + self._steps_for(rest)

    def _steps_for(self, samples: int) -> int:
        return -(-samples // (sum(self.max_batch_sizes) or self.max_batch_size * self.num_processes))

    def __len__(self) -> int:
        """Return the number of steps from ``start`` on."""
        return self._num_steps

    def _has_full_steps(self) -> bool:
        """Return whether all steps of an update are full."""
        if self.steps_per_update * self.num_processes * self.batch_size != self.samples_per_update:
            return False
        if self.fixed_batches:
            is_consecutive = 1 in (self.num_processes, self.steps_per_update)
            return is_consecutive and self.batch_size == self.max_batch_size
        return not self.max_batch_sizes and (self.batch_size > 1 or self.max_batch_size == 1)

    def size(self, step: int) -> int:
        """Return the number of samples that all processes together take in a step.

        You call it to weight the loss of a step, or to count samples. The number is at least 1. It differs between
        steps if the samples of an update do not divide evenly, and in the last update of an epoch.

        Args:
            step: The step number, from 0 to ``len(split) - 1``. In a resumed epoch, step 0 is the first step after
                ``start``.

        Returns:
            The number of samples.

        Raises:
            IndexError: There is no such step.

        Example:
            >>> from pa_data import UpdateSplit
            >>> split = UpdateSplit(num_samples=25, samples_per_update=10, max_batch_size=5, num_processes=2)
            >>> [split.size(step) for step in range(len(split))]
            [10, 10, 5]
        """
        if self.fixed_batches:
            return sum(len(self.piece(step, rank)) for rank in range(self.num_processes))
        return len(self._positions(step))

    def piece(self, step: int, rank: int) -> range:
        """Return the positions in the epoch that a process takes in a step.

        You call it to find out which samples form a batch. A position is the place of a sample in the order of the
        epoch, from 0 to ``num_samples - 1``; ``EpochOrder.indices`` translates positions to dataset indices. A loader
        skips a step in which the range of its process is empty.

        Args:
            step: The step number, from 0 to ``len(split) - 1``. In a resumed epoch, step 0 is the first step after
                ``start``.
            rank: The rank of the process, from 0 to ``num_processes - 1``.

        Returns:
            Consecutive positions, counted from the beginning of the epoch; empty for the last ranks in a step with few
            samples.

        Raises:
            IndexError: There is no such step or rank.

        Example:
            >>> from pa_data import UpdateSplit
            >>> split = UpdateSplit(num_samples=25, samples_per_update=10, max_batch_size=5, num_processes=2)
            >>> split.piece(2, rank=0), split.piece(2, rank=1)
            (range(20, 23), range(23, 25))
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
        """Return the positions of the update that contains a step.

        You call it to weight the loss of a step, which counts ``split.size(step) / len(split.update(step))`` in the
        mean over the update; ``split.size(step)`` is the number of samples of the step. A position is the place of a
        sample in the order of the epoch, from 0 to ``num_samples - 1``.

        Args:
            step: The step number, from 0 to ``len(split) - 1``. Step 0 is the first step of this split: in a resumed
                epoch, it follows the ``start`` samples that have already been trained on.

        Returns:
            Consecutive positions, counted from the beginning of the epoch: the positions of all processes in all steps
            of the update, at least one.

        Raises:
            IndexError: There is no such step.

        Example:
            >>> from pa_data import UpdateSplit
            >>> split = UpdateSplit(num_samples=25, samples_per_update=20, max_batch_size=5, num_processes=2)
            >>> split.steps_per_update, [split.update(step) for step in range(len(split))]
            (2, [range(0, 20), range(0, 20), range(20, 25)])
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
        """Return the numbers of the micro-batches of a process in the update of a step, and how many the update has.

        With ``fixed_batches``, an update is cut into numbered micro-batches in the same way on any number of processes,
        and each process takes consecutive numbers, one in each step. You call it to add up gradients in the order of
        these numbers, so that the sum is the same on any number of processes.

        Args:
            step: The number of any step of the update, from 0 to ``len(split) - 1``. In a resumed epoch, step 0 is the
                first step after ``start``.
            rank: The rank of the process, from 0 to ``num_processes - 1``.

        Returns:
            The numbers of the micro-batches of this process, and the number of micro-batches of the whole update; an
            empty range and 0 without fixed batches.

        Raises:
            IndexError: There is no such step or rank.

        Example:
            >>> from pa_data import UpdateSplit
            >>> split = UpdateSplit(30, 20, max_batch_size=4, num_processes=2, fixed_batches=True)
            >>> split.micro_batches(0, rank=0), split.micro_batches(0, rank=1)
            ((range(0, 3), 5), (range(3, 5), 5))
        """
        _check_within("rank", rank, self.num_processes)
        number = -(-len(self.update(step)) // self.max_batch_size) if self.fixed_batches else 0
        return _even_piece(range(number), self.num_processes, rank), number

    def resume_point(self, position: int) -> int:
        """Return the largest position up to the given position that may be the ``start`` of such a split.

        You call it before you save or use a position, because with ``fixed_batches`` a run can only resume between two
        updates. Without ``fixed_batches``, it can resume anywhere.

        Args:
            position: A position in the epoch, from 0 to ``num_samples``.

        Returns:
            The position itself or, with fixed batches, the beginning of its update.

        Example:
            >>> from pa_data import UpdateSplit
            >>> split = UpdateSplit(30, 20, max_batch_size=4, num_processes=2, fixed_batches=True)
            >>> split.resume_point(27)
            20
        """
        between_updates = position in (0, self.num_samples) or not self.fixed_batches
        return position if between_updates else position - position % self.samples_per_update


class _WithoutUpdates:
    """The common parts of splits whose steps do not belong to larger updates."""

    steps_per_update: int = 1
    fixed_batches: bool = False

    def update(self: Split, step: int) -> range:
        """Return the positions that all processes take in a step, since each step is an update.

        You need it only in code that handles any split: in an `UpdateSplit`, several steps may belong to an update, and
        a step counts ``split.size(step) / len(split.update(step))`` in its mean. Here, the two numbers are equal. A
        position is the place of a sample in the order of the epoch or evaluation, from 0 to ``num_samples - 1``.

        Args:
            step: The step number, from 0 to ``len(split) - 1``. Step 0 is the first step of this split: in a resumed
                epoch, it follows the samples that have already been trained on.

        Returns:
            Consecutive positions, counted from the beginning of the epoch or evaluation: the ranges of all processes,
            rank after rank.

        Raises:
            IndexError: There is no such step.

        Example:
            >>> import torch
            >>> from pa_data import BatchSplit, EvalSplit
            >>> split = EvalSplit(num_samples=10, batch_size=3, num_processes=2)
            >>> split.update(1), split.piece(1, rank=0), split.piece(1, rank=1)
            (range(6, 10), range(6, 8), range(8, 10))
            >>> BatchSplit(torch.tensor([2, 7, 9]), num_processes=2).update(0)
            range(0, 7)
        """
        begin = self.piece(step, 0).start
        return range(begin, begin + self.size(step))

    def micro_batches(self, step: int, rank: int) -> tuple[range, int]:
        """Return an empty range and 0, since micro-batches have no numbers in this split.

        You call it where code handles any split. Only an ``UpdateSplit`` with ``fixed_batches`` numbers the
        micro-batches of an update.

        Args:
            step: The step number. It is not checked.
            rank: The rank of the process. It is not checked.

        Returns:
            An empty range and 0.

        Example:
            >>> from pa_data import EvalSplit
            >>> EvalSplit(num_samples=10, batch_size=3, num_processes=2).micro_batches(0, rank=0)
            (range(0, 0), 0)
        """
        return range(0), 0


@dataclass(frozen=True)
class EvalSplit(_WithoutUpdates):
    """Divides an evaluation among processes, so that each sample comes once and each process has samples in each step.

    Use it for an evaluation on several processes; ``KeyedDataLoader`` with ``split="eval"`` makes it.
    ``DistributedSampler`` repeats samples to fill the last step, which changes metrics. This split repeats none, and
    still gives all processes the same number of steps, so collective operations in each step are safe. Each step is cut
    into contiguous ranges of nearly equal size, so results that are gathered rank after rank are in the order of the
    dataset.

    Full global batches come first. If fewer samples than processes remain for the last step, it borrows samples from
    the step before. With a batch size of 1, the remaining samples join the step before, and some processes then take 2
    samples.

    Attributes:
        num_samples: The number of samples of the whole evaluation, at least one for each process.
        batch_size: The number of samples of a process in a full step.
        num_processes: The number of processes that share each step.
        drop_last: Whether to leave out the samples that do not fill a global batch. The default is False, so that
            metrics count every sample.
        steps_per_update: Always 1, since an evaluation makes no updates.
        fixed_batches: Always False.

    Raises:
        DataError: A number is out of its range.
        EmptyDatasetError: There are fewer samples than processes. It is a ``DataError``.

    Example:
        >>> from pa_data import EvalSplit
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
        """Raise an error for numbers out of range."""
        _check_sizes(self)
        if self.num_samples < self.num_processes:
            raise EmptyDatasetError(
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
        """Return the position where a step ends; 0 for the step before the first."""
        regular_end = (step + 1) * self._global_batch
        if step == self._num_steps - 1:
            return regular_end if self.drop_last else self.num_samples
        return regular_end - self._borrowed if step == self._num_steps - 2 else regular_end

    def __len__(self) -> int:
        """Return the number of steps."""
        return self._num_steps

    @property
    def num_full_steps(self) -> int:
        """The number of steps, from the first on, in which each process takes ``batch_size`` samples, an integer.

        For 17 samples on 2 processes with 4 samples each, it is 1, since the last step borrows a sample from the
        second.
        """
        if self._remainder == 0:
            return self._num_steps
        return self._num_steps - (2 if self._borrowed > 0 else 1)

    def size(self, step: int) -> int:
        """Return the number of samples that all processes together take in a step.

        You call it to weight the result of a step in a mean. The number is at least ``num_processes``.

        Args:
            step: The step number, from 0 to ``len(split) - 1``.

        Returns:
            The number of samples.

        Raises:
            IndexError: There is no such step.

        Example:
            >>> from pa_data import EvalSplit
            >>> EvalSplit(num_samples=17, batch_size=4, num_processes=2).size(1)
            7
        """
        _check_within("step", step, self._num_steps)
        return self._end(step) - self._begin(step)

    def piece(self, step: int, rank: int) -> range:
        """Return the positions that a process takes in a step.

        You call it to find out which samples form a batch. A position is the place of a sample in the order of the
        evaluation, which is its index in the dataset unless the loader shuffles.

        Args:
            step: The step number, from 0 to ``len(split) - 1``.
            rank: The rank of the process, from 0 to ``num_processes - 1``.

        Returns:
            Consecutive positions, at least one.

        Raises:
            IndexError: There is no such step or rank.

        Example:
            >>> from pa_data import EvalSplit
            >>> EvalSplit(num_samples=17, batch_size=4, num_processes=2).piece(2, rank=1)
            range(16, 17)
        """
        _check_within("rank", rank, self.num_processes)
        _check_within("step", step, self._num_steps)
        return _even_piece(range(self._begin(step), self._end(step)), self.num_processes, rank)

    def _begin(self, step: int) -> int:
        return self._end(step - 1) if step > 0 else 0

    @property
    def start(self) -> int:
        """The number of samples before step 0: always 0, because an evaluation does not resume in the middle.

        It exists for code that handles any split. In a resumed training epoch, the ``start`` of other splits is the
        number of samples that have already been trained on.
        """
        return 0

    @property
    def steps_before(self) -> int:
        """Always 0, because an evaluation begins at its first sample.

        In other splits it is the number of steps before ``start``.
        """
        return 0

    def resume_point(self, position: int) -> int:
        """Return 0, because an interrupted evaluation always begins again at its first sample.

        You call it where code handles any split, before you save a position.

        Args:
            position: A position of the evaluation. It has no effect.

        Returns:
            0.

        Example:
            >>> from pa_data import EvalSplit
            >>> EvalSplit(num_samples=17, batch_size=4, num_processes=2).resume_point(8)
            0
        """
        return 0


@dataclass(frozen=True, eq=False)
class BatchSplit(_WithoutUpdates):
    """Divides an epoch whose batches are already decided: in each step, each process takes the next batch.

    Use it for orders such as ``TokenBudget``, which determine the batches regardless of the number of processes;
    ``KeyedDataLoader`` then creates it. To cut an epoch into batches of a given size, use ``UpdateSplit``. If the last
    step has fewer batches than there are processes, the first ranks take them, and the others get an empty range.

    Attributes:
        batch_ends: The positions after the last sample of each batch of the whole epoch, increasing, as an int64 tensor
            of one dimension on the CPU; see ``EpochOrder.batch_ends``. ``[2, 7, 9]`` means batches of 2, 5 and 2
            samples.
        num_processes: The number of processes that share each step.
        start: The number of samples of this epoch that have already been trained on: 0, the default, or an element of
            ``batch_ends``.
        steps_per_update: Always 1, since each step is an update.
        fixed_batches: Always False, since the batches have no numbers within an update.

    Raises:
        DataError: There is no process, or ``start`` is within a batch.

    Example:
        >>> import torch
        >>> from pa_data import BatchSplit
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
        """Raise an error for numbers out of range."""
        _check_sizes(self)
        if self.start != self._end(self._first):
            raise DataError(
                f"The position is not where a batch of the order ends. Got start={self.start}, within batch "
                f"{self._first} of {len(self.batch_ends)}. Begin the epoch again with start=0, if the order is not "
                "the order in which the position was counted."
            )

    @cached_property
    def _first(self) -> int:
        """The number of batches that end at ``start`` or before it."""
        return int(torch.searchsorted(self.batch_ends, self.start, right=True))

    @property
    def steps_before(self) -> int:
        """The number of steps in which this number of processes would take the batches before ``start``, an integer.

        It is the number of batches before ``start`` divided by ``num_processes``, rounded up; 0 if ``start`` is 0. Add
        it to a step to get the step number within the whole epoch.
        """
        return -(-self._first // self.num_processes)

    def resume_point(self, position: int) -> int:
        """Return the largest position up to the given position at which a batch ends, or 0.

        You call it before you save or use a position, because a run can only resume between two batches.

        Args:
            position: A position in the epoch, from 0 to ``num_samples``.

        Returns:
            The position at which a resumed run can begin, at most ``position``.

        Example:
            >>> import torch
            >>> from pa_data import BatchSplit
            >>> BatchSplit(torch.tensor([2, 7, 9]), num_processes=2).resume_point(8)
            7
        """
        return self._end(int(torch.searchsorted(self.batch_ends, position, right=True)))

    def _end(self, num_batches: int) -> int:
        """Return the position after the first batches of the epoch."""
        return 0 if num_batches == 0 else int(self.batch_ends[min(num_batches, len(self.batch_ends)) - 1])

    @property
    def num_samples(self) -> int:
        """The number of samples of the whole epoch over all processes, which is the last element of ``batch_ends``.

        It is an integer, and 0 without batches.
        """
        return self._end(len(self.batch_ends))

    @property
    def batch_size(self) -> int:
        """The mean number of samples in a batch, rounded to an integer of at least 1.

        Batches have different sizes, so use it only as an estimate: 3 for batches of 2, 5 and 2 samples.
        """
        return max(1, round(self.num_samples / max(1, len(self.batch_ends))))

    @property
    def drop_last(self) -> bool:
        """Always False, because no batch is left out.

        In other splits it is True if samples that do not fill an update or a global batch are left out.
        """
        return False

    @property
    def num_full_steps(self) -> int:
        """Always 0, because the sizes of batches vary.

        In other splits it is the number of first steps in which each process takes ``batch_size`` samples.
        """
        return 0

    @cached_property
    def _num_steps(self) -> int:
        return -((self._first - len(self.batch_ends)) // self.num_processes)

    def __len__(self) -> int:
        """Return the number of steps from ``start`` on."""
        return self._num_steps

    def size(self, step: int) -> int:
        """Return the number of samples that all processes together take in a step.

        You call it to weight the loss of a step, or to count samples. The number differs from step to step, since
        batches have different sizes.

        Args:
            step: The step number, from 0 to ``len(split) - 1``. In a resumed epoch, step 0 is the first step after
                ``start``.

        Returns:
            The number of samples.

        Raises:
            IndexError: There is no such step.

        Example:
            >>> import torch
            >>> from pa_data import BatchSplit
            >>> BatchSplit(torch.tensor([2, 7, 9]), num_processes=2).size(0)
            7
        """
        _check_within("step", step, self._num_steps)
        first = self._first + step * self.num_processes
        return self._end(first + self.num_processes) - self._end(first)

    def piece(self, step: int, rank: int) -> range:
        """Return the positions of the batch that a process takes in a step.

        You call it to find out which samples form a batch. A position is the place of a sample in the order of the
        epoch, from 0 to ``num_samples - 1``; ``EpochOrder.indices`` translates positions to dataset indices.

        Args:
            step: The step number, from 0 to ``len(split) - 1``. In a resumed epoch, step 0 is the first step after
                ``start``.
            rank: The rank of the process, from 0 to ``num_processes - 1``.

        Returns:
            Consecutive positions, counted from the beginning of the epoch; empty for the last ranks in a last step with
            fewer batches than processes.

        Raises:
            IndexError: There is no such step or rank.

        Example:
            >>> import torch
            >>> from pa_data import BatchSplit
            >>> BatchSplit(torch.tensor([2, 7, 9]), num_processes=2).piece(0, rank=1)
            range(2, 7)
        """
        _check_within("rank", rank, self.num_processes)
        _check_within("step", step, self._num_steps)
        batch = self._first + step * self.num_processes + rank
        return range(self._end(batch), self._end(batch + 1))


def _piece_in_proportion(positions: range, most: tuple[int, ...], rank: int) -> range:
    """Return the piece of a rank in a step that is divided in proportion to the largest batch of each rank.

    Only the last ranks may have no sample. No rank gets exactly one sample if there is room for two, which is also true
    of an even division.
    """
    size = len(positions)
    for at_least in (min(2, size, *most), 1):
        ranks = min(len(most), size // at_least)
        rest = size - ranks * at_least
        room = [size - at_least for size in most[:ranks]]
        if rest <= sum(room):
            break

    def begin(of: int) -> int:
        share = -(-rest * sum(room[:of]) // max(sum(room), 1))
        return positions.start + min(of, ranks) * at_least + share

    return range(begin(rank), begin(rank + 1))


def _even_piece(positions: range, parts: int, part: int) -> range:
    """Return a part of positions that are cut into contiguous parts of nearly equal size, larger parts first."""
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
    """Everything that the batches of a process in an epoch depend on.

    Attributes:
        order: The order of the epoch.
        split: The positions that each process takes in each step.
        rank: The rank of this process.
        epoch_key: The key of the epoch, see ``pa_data.rng.mix``.
    """

    order: EpochOrder
    split: Split
    rank: int
    epoch_key: int

    @cached_property
    def key(self) -> int:
        """The key of the random numbers of the epoch, which the index of a sample or its position extends."""
        return extend_key(self.epoch_key, _POSITIONS) if self.order.repeats else self.epoch_key

    @cached_property
    def num_batches(self) -> int:
        """The number of steps in which this process takes a sample; the first process does so in each step."""
        if self.rank == 0:
            return len(self.split)
        return self._last_update * self._batches_in(0) + self._batches_in(self._last_update)

    def step_after(self, batches: int) -> int:
        """Return the step that follows some batches of this process.

        For this process, an update ends with its last batch in the update.
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
        """Return the number of batches of this process in an update; all updates but the last have the same number."""
        split, first = self.split, update * self.split.steps_per_update
        steps = range(first, min(first + split.steps_per_update, len(split)))
        if steps.stop <= split.num_full_steps:
            return len(steps)
        return sum(1 for step in steps if split.piece(step, self.rank))

    def indices(self) -> Iterator[Tensor]:
        """Return the dataset indices of each batch; steps in which this process takes nothing are left out."""
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
        """Return the positions of this process in each step from a step on, without empty steps."""
        return filter(len, (self.split.piece(step, self.rank) for step in range(first, len(self.split))))

    def place_after(self, batches: int) -> int | None:
        """Return the position at which a run resumes after some batches of this process, or None at the end."""
        step = self.step_after(batches)
        return None if step == len(self.split) else self.split.resume_point(self.split.piece(step, 0).start)

    def describe_awaited(self, batches: int) -> str:
        """Return a description of the batch that a worker probably made when it died, after some batches."""
        piece = self.split.piece(self.step_after(batches), self.rank)
        indices = [int(index) for index in self.order.indices(piece.start, piece.stop)]
        return (
            f"A worker died while batch {batches + 1} of this process was awaited, of the samples {indices}; it "
            "may have been at one of the next batches. The system ends a process for want of memory, and native code "
            "may crash: num_workers=0 fetches in the main process."
        )

    def ahead(self) -> Iterator[range]:
        """Yield for each batch the range of a stream that is read with it, see ``BatchRequest``.

        The ranges are chosen so that all processes notice in the same update if the stream has more or fewer samples:
        the first batch of an update reads all of the update, and the last batch reads to the end.
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
                    keep = read = sys.maxsize  # some processes have their last batch before the last update
            yield range(keep, sys.maxsize if number == num_batches else read)

    def _of_full_steps(self, first: int, number: int) -> tuple[Tensor, ...]:
        """Return the batches of some consecutive steps, cut from a tensor so that no two share an element."""
        split, begin = self.split, self.split.piece(first, 0).start
        indices = self.order.indices(begin, begin + number * split.batch_size * split.num_processes)
        return indices.view(number, split.num_processes, split.batch_size)[:, self.rank].unbind()


class EpochRequest:
    """Keeps the chosen epoch until the loader begins to iterate, without a reference to the loader."""

    def __init__(self) -> None:
        self.epoch: int | None = None

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class EpochBatches(Sampler[list[int]]):
    """The batch sampler of a loader: the dataset indices of each batch of the chosen epoch.

    An iterator keeps its plan; a plan that is chosen later is for the next iterator.

    Args:
        plan: The plan of a whole epoch.
        reads_stream: Whether the samples come from a stream.

    Attributes:
        plan: The plan of the chosen epoch, from the chosen position on.
        whole_epoch: The plan of the chosen epoch from its first position on.
        sampler: An object with a ``set_epoch`` method, which trainers call to choose the epoch.
    """

    def __init__(self, plan: EpochPlan, *, reads_stream: bool = False) -> None:
        self._reads_stream = reads_stream
        self.plan: EpochPlan = plan
        self.whole_epoch: EpochPlan = plan
        self.sampler: EpochRequest = EpochRequest()

    def __len__(self) -> int:
        """Return the number of batches of the whole chosen epoch."""
        return self.whole_epoch.num_batches

    def requests(self) -> Iterator[BatchRequest]:
        """Return the request of each batch."""
        plan = self.plan
        if self._reads_stream:
            return zip(repeat(plan.key), plan.indices(), plan.ahead(), strict=False)
        if not plan.order.repeats:
            return zip(repeat(plan.key), plan.indices(), repeat(None), strict=False)
        return zip(repeat(plan.key), plan.indices(), plan.pieces(), strict=False)

    @override
    def __iter__(self) -> Iterator[list[int]]:
        return (listed(indices) for _, indices, _ in self.requests())
