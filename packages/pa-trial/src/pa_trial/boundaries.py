"""The batches after which a training pauses, and the reasons to pause; pure functions of counts."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple, cast

from pa_trial.units import Batch, Epoch, TrainUnit


class Due(NamedTuple):
    """The work that is due after a batch.

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


@dataclass(frozen=True)
class Boundaries:
    """The boundaries of a training: its length, and the periods of validations, checkpoints and reports.

    Attributes:
        max_batches: The length in batches.
        validation: When to validate; None for never.
        checkpoint: When to save; None for never.
        report: When to report.
        epoch_length: The number of batches in an epoch.

    Example:
        >>> boundaries = Boundaries(10, validation=Batch(4), checkpoint=None, report=Batch(100), epoch_length=4)
        >>> boundaries.after(3) is None, boundaries.after(4)
        (True, Due(max_length=False, validation=True, checkpoint=False, report=False))
    """

    max_batches: int
    validation: TrainUnit | None
    checkpoint: TrainUnit | None
    report: TrainUnit | None
    epoch_length: int

    def is_complete(self, batches: int) -> bool:
        """Whether the training has reached its length.

        Args:
            batches: The number of complete batches.
        """
        return batches >= self.max_batches

    def fraction(self, batches: int) -> float:
        """Return the completed fraction of the training, from 0 to 1.

        Args:
            batches: The number of complete batches.
        """
        return min(1.0, batches / self.max_batches) if self.max_batches > 0 else 1.0

    def after(self, batches: int) -> Due | None:
        """Return the work that is due after a batch; None if training continues.

        Args:
            batches: The number of complete batches, counted from the beginning of the training.
        """
        ends = batches >= self.max_batches
        validates = is_due(self.validation, batches, self.epoch_length)
        saves = is_due(self.checkpoint, batches, self.epoch_length)
        reports = is_due(self.report, batches, self.epoch_length)
        return Due(ends, validates, saves, reports) if ends or validates or saves or reports else None


def is_due(period: TrainUnit | None, batches: int, epoch_length: int) -> bool:
    """Return whether a period ends after a number of batches; False at batch 0, and if the period is None.

    Args:
        period: The period. Numbers below 1 stand for 1.
        batches: The number of batches trained.
        epoch_length: The batches of an epoch.

    Example:
        >>> [batches for batches in range(13) if is_due(Epoch([1, 3]), batches, epoch_length=4)]
        [4, 12]
    """
    if period is None or batches == 0:
        return False
    steps = period.value
    if isinstance(period, Epoch):
        batches, rest = divmod(batches, epoch_length)
        if rest:
            return False
    return batches % max(1, int(steps)) == 0 if isinstance(steps, (int, Integral)) else batches in steps


def batches_of(length: TrainUnit, epoch_length: int) -> int:
    """Return the number of batches of a length.

    Args:
        length: A number of batches or epochs.
        epoch_length: The number of batches in an epoch.
    """
    number = int(cast("int", length.value))
    return number if isinstance(length, Batch) else number * epoch_length
