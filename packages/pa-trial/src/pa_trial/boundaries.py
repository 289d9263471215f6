"""After which batches a training pauses, and what for. Pure functions of counts."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import NamedTuple, cast

from pa_trial.units import Batch, TrainUnit


class Due(NamedTuple):
    """What is due after a batch.

    Attributes:
        max_length: The training has reached its length.
        validation: A validation.
        checkpoint: A checkpoint.
        report: A report of the progress.
    """

    max_length: bool = False
    validation: bool = False
    checkpoint: bool = False
    report: bool = False


class Boundaries:
    """The boundaries of a training: its length, and the periods of validations, checkpoints and reports.

    Args:
        max_batches: The length in batches.
        validation: When to validate; None for never.
        checkpoint: When to save; None for never.
        report: When to report.
        epoch_length: Batches in an epoch.

    Example:
        >>> boundaries = Boundaries(10, validation=Batch(4), checkpoint=None, report=Batch(100), epoch_length=4)
        >>> boundaries.after(3) is None, boundaries.after(4)
        (True, Due(max_length=False, validation=True, checkpoint=False, report=False))
    """

    def __init__(
        self,
        max_batches: int,
        *,
        validation: TrainUnit | None,
        checkpoint: TrainUnit | None,
        report: TrainUnit | None,
        epoch_length: int,
    ) -> None:
        self._max_batches = max_batches
        self._validation = fires(validation, epoch_length)
        self._checkpoint = fires(checkpoint, epoch_length)
        self._report = fires(report, epoch_length)

    def is_complete(self, batches: int) -> bool:
        """Whether the training has reached its length.

        Args:
            batches: Batches that are complete.
        """
        return batches >= self._max_batches

    def fraction(self, batches: int) -> float:
        """Return how much of the training is done, from 0 to 1.

        Args:
            batches: Batches that are complete.
        """
        return min(1.0, batches / self._max_batches) if self._max_batches > 0 else 1.0

    def after(self, batches: int) -> Due | None:
        """Return the work that is due after a batch; None if training continues.

        Args:
            batches: Batches that are complete, counted from the beginning of the training.
        """
        ends = batches >= self._max_batches
        validates, saves, reports = self._validation(batches), self._checkpoint(batches), self._report(batches)
        return Due(ends, validates, saves, reports) if ends or validates or saves or reports else None


def fires(unit: TrainUnit | None, epoch_length: int) -> Callable[[int], bool]:
    """Return a function that tells whether a period fires after so many batches.

    Args:
        unit: The period; None never fires.
        epoch_length: Batches in an epoch; a period in epochs fires on the last batch of one alone.

    Example:
        >>> from pa_trial.units import Epoch
        >>> after_epochs = fires(Epoch([1, 3]), epoch_length=4)
        >>> [batches for batches in range(13) if after_epochs(batches)]
        [4, 12]
    """
    if unit is None:
        return _never
    steps = unit.value
    if isinstance(steps, (int, Integral)):
        return _multiples(max(1, int(steps)) * (1 if isinstance(unit, Batch) else epoch_length))
    schedule = steps
    if isinstance(unit, Batch):
        return lambda batches: batches > 0 and batches in schedule
    return lambda batches: batches > 0 and batches % epoch_length == 0 and batches // epoch_length in schedule


def batches_of(length: TrainUnit, epoch_length: int) -> int:
    """Return how many batches a length has.

    Args:
        length: A number of batches or epochs.
        epoch_length: Batches in an epoch.
    """
    number = int(cast("int", length.value))
    return number if isinstance(length, Batch) else number * epoch_length


def _never(_batches: int) -> bool:
    return False


def _multiples(period: int) -> Callable[[int], bool]:
    return lambda batches: batches > 0 and batches % period == 0
