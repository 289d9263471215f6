"""The numbers of steps and updates in each epoch of a run, which may differ."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable


class EpochLengths:
    """The steps and updates of each epoch of a training run, known before it begins.

    Most orders visit the same number of samples in each epoch. If an order visits more or fewer, like `Curriculum`,
    each epoch is computed once, when it is first needed.

    Args:
        num_steps: A function that returns the number of steps of an epoch, that is, of batches of one process; at least
            1. Epochs are counted from 0.
        accumulation_steps: The number of steps in an update; the last update of an epoch may have fewer.
        are_equal: Whether all epochs are as long as the first.
        are_known: False for a stream, whose epochs have no known length, so that all updates of the run count as a
            single epoch.
        updates_per_group: The largest number of updates that a loop makes from each group of `accumulation_steps`
            steps.

    Attributes:
        are_known: Whether the lengths are known.
        updates_per_group: The largest number of updates of a group.

    Example:
        >>> lengths = EpochLengths([4, 10, 6].__getitem__, accumulation_steps=2, are_equal=False)
        >>> [lengths.updates_of(epoch) for epoch in range(3)]
        [2, 5, 3]
        >>> lengths.updates_before(2), lengths.epochs_for(8), lengths.mean_updates(3)
        (7, 3, 4)
    """

    def __init__(
        self,
        num_steps: Callable[[int], int],
        accumulation_steps: int = 1,
        *,
        are_equal: bool,
        are_known: bool = True,
        updates_per_group: int = 1,
    ) -> None:
        self._num_steps = num_steps
        self._accumulation_steps = accumulation_steps
        self.updates_per_group: int = updates_per_group
        self._are_equal = are_equal
        self.are_known: bool = are_known
        self._steps: list[int] = []
        self._ends: list[int] = []  # the number of updates of the run at the end of each epoch

    def steps_of(self, epoch: int) -> int:
        """Return the number of steps of an epoch.

        Args:
            epoch: The number of the epoch, from 0.
        """
        return self._steps[self._known(epoch)]

    def updates_of(self, epoch: int) -> int:
        """Return the number of updates of an epoch that is trained to its end.

        Args:
            epoch: The number of the epoch, from 0.
        """
        return self._count_updates(self.steps_of(epoch))

    def updates_before(self, epoch: int) -> int:
        """Return the number of updates of a run when an epoch begins, if all previous epochs were complete.

        Args:
            epoch: The number of the epoch, from 0; pass the number of all epochs for the updates of the whole run.
        """
        if epoch == 0:
            return 0
        known = self._known(epoch - 1)
        return self._ends[known] * (epoch - known)

    def epochs_for(self, updates: int) -> int:
        """Return the number of epochs that a number of updates takes; the last epoch may be incomplete.

        Args:
            updates: The number of updates, at least 1.
        """
        if self._are_equal:
            return -(-updates // self.updates_of(0))
        while not self._ends or self._ends[-1] < updates:
            self._known(len(self._ends))
        return bisect_left(self._ends, updates) + 1

    def is_end_of_epoch(self, updates: int) -> bool:
        """Return whether an epoch ends with an update of the run.

        Args:
            updates: The number of updates up to this update, at least 1.
        """
        return self.updates_before(self.epochs_for(updates)) == updates

    def mean_updates(self, num_epochs: int) -> int:
        """Return the mean number of updates of the first epochs, rounded up.

        Args:
            num_epochs: The number of epochs, at least 1.
        """
        return -(-self.updates_before(num_epochs) // num_epochs)

    def mean_steps(self, num_epochs: int) -> int:
        """Return the mean number of steps of the first epochs, rounded up.

        Args:
            num_epochs: The number of epochs, at least 1.
        """
        total = sum(map(self.steps_of, range(num_epochs))) if not self._are_equal else self.steps_of(0) * num_epochs
        return -(-total // num_epochs)

    def _known(self, epoch: int) -> int:
        """Compute the lengths up to an epoch, and return the number of a stored epoch with the same length."""
        epoch = 0 if self._are_equal else epoch
        while len(self._ends) <= epoch:
            steps = self._num_steps(len(self._ends))
            before = self._ends[-1] if self._ends else 0
            self._steps.append(steps)
            self._ends.append(before + self._count_updates(steps))
        return epoch

    def _count_updates(self, steps: int) -> int:
        return -(-steps // self._accumulation_steps) * self.updates_per_group
