"""The arguments of ``fit``, checked before anything is done."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Final, cast

from pa_trial.boundaries import Boundaries, batches_of
from pa_trial.errors import ArgumentTypeError, ConfigurationError
from pa_trial.progress import TrialProgress
from pa_trial.settings import ExperimentSettings, require_bool
from pa_trial.units import Batch, Epoch, TrainUnit

DEFAULT_REPORTING_PERIOD: Final = Batch(100)
"""Often enough to show that a training makes progress, and rare enough not to slow it down."""


@dataclass(frozen=True)
class FitOptions:
    """The arguments of ``Trainer.fit``, which documents them.

    Raises:
        ConfigurationError: A value cannot work.
        ArgumentTypeError: An argument has the wrong type.
    """

    checkpoint_period: TrainUnit | None
    validation_period: TrainUnit | None
    max_length: TrainUnit | None
    reporting_period: TrainUnit
    checkpoint_policy: str
    latest_checkpoint: str | Path | None
    step_zero_validation: bool
    test_mode: bool
    warm_start: str | Path | None
    weigh_by_records: bool
    trust_pickle: bool

    def __post_init__(self) -> None:
        length = self.max_length
        if length is None and not self.test_mode:
            do = "Pass max_length, such as max_length=Epoch(1) or max_length=Batch(1000)."
            raise ConfigurationError("fit() does not know how long to train, got max_length=None.", do=do)
        if length is not None and not (isinstance(length, (Batch, Epoch)) and _is_integer(length.value)):
            wanted = "Batch or Epoch of an int, such as Epoch(1)"
            raise ArgumentTypeError(f"max_length must be {wanted}, got max_length={length!r}.")
        if length is not None and cast("int", length.value) < 0:
            raise ConfigurationError(f"max_length must be at least 0, got {length!r}.")
        for name in ("checkpoint_period", "validation_period", "reporting_period"):
            _check_period(name, getattr(self, name))
        if self.checkpoint_policy not in ("best", "all", "none"):
            raise ConfigurationError(
                f'checkpoint_policy must be "best", "all" or "none", got {self.checkpoint_policy!r}.'
            )
        for name in ("step_zero_validation", "test_mode", "weigh_by_records", "trust_pickle"):
            require_bool(name, getattr(self, name))
        for name in ("latest_checkpoint", "warm_start"):
            path = getattr(self, name)
            if path is not None and not isinstance(path, (str, Path)):
                wanted = "the uuid or the path of a checkpoint, or None"
                raise ArgumentTypeError(f"{name} must be {wanted}, got {name}={path!r}.")

    def completed(self, settings: ExperimentSettings) -> FitOptions:
        """Return the options, with the periods of the experiment configuration if ``fit`` got no period.

        Args:
            settings: The experiment configuration.
        """
        unit = settings.scheduling_unit
        reports_by_default = self.reporting_period is DEFAULT_REPORTING_PERIOD
        return replace(
            self,
            checkpoint_period=self.checkpoint_period or settings.min_checkpoint_period,
            validation_period=self.validation_period or settings.min_validation_period,
            reporting_period=Batch(unit) if unit and reports_by_default else self.reporting_period,
        )

    def boundaries(self, progress: TrialProgress, epoch_length: int) -> Boundaries:
        """Return the batches at which the training pauses and ends.

        Args:
            progress: The counters when the training begins or resumes.
            epoch_length: The number of batches in an epoch.
        """
        if self.test_mode or self.max_length is None:
            max_batches = progress.initial_batch + 1
        else:
            max_batches = batches_of(self.max_length, epoch_length)
        periods = self.validation_period, self.checkpoint_period, self.reporting_period
        return Boundaries(max_batches, *periods, epoch_length)


def _check_period(name: str, period: object) -> None:
    if period is None and name != "reporting_period":
        return
    steps = period.value if isinstance(period, (Batch, Epoch)) else None
    if not _is_integer(steps) and (isinstance(steps, (str, bytes)) or not isinstance(steps, Container)):
        wanted = "Batch or Epoch of an int or of ints, such as Batch(100) or Epoch([1, 5, 10])"
        raise ArgumentTypeError(f"{name} must be {wanted}, got {name}={period!r}.")


def _is_integer(value: object) -> bool:
    """Whether a value is an integer of Python or NumPy, but not a bool."""
    return isinstance(value, (int, Integral)) and not isinstance(value, bool)
