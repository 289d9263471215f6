"""The arguments of ``fit``, checked before anything is done."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from enum import StrEnum
from numbers import Integral
from pathlib import Path
from typing import Final, cast

from pa_data.errors import ArgumentTypeError, ConfigurationError
from pa_trial.boundaries import Boundaries, batches_of
from pa_trial.progress import TrialProgress
from pa_trial.settings import ExperimentSettings, require_bool
from pa_trial.units import Batch, Epoch, TrainUnit

DEFAULT_REPORTING_PERIOD: Final = Batch(100)
"""Often enough to see that a training goes well, and rare enough not to slow it down."""


class CheckpointPolicy(StrEnum):
    """Which validations are followed by a checkpoint."""

    BEST = "best"
    """Those which are better than all before."""
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True)
class FitOptions:
    """The arguments of ``Trainer.fit``, where they are described.

    Raises:
        ConfigurationError: A value cannot work.
        ArgumentTypeError: An argument is of another kind.
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
        _check_length(self.max_length, is_needed=not self.test_mode)
        _check_period("checkpoint_period", self.checkpoint_period)
        _check_period("validation_period", self.validation_period)
        _check_period("reporting_period", self.reporting_period)
        _check_policy(self.checkpoint_policy)
        for name in ("step_zero_validation", "test_mode", "weigh_by_records", "trust_pickle"):
            require_bool(name, getattr(self, name))
        _check_path("latest_checkpoint", self.latest_checkpoint)
        _check_path("warm_start", self.warm_start)

    def completed(self, settings: ExperimentSettings) -> FitOptions:
        """Return the options with the periods of the experiment configuration where ``fit`` was told none.

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
        """Return where the training pauses and ends.

        Args:
            progress: How far the training has come when it begins or resumes.
            epoch_length: Batches in an epoch.
        """
        if self.test_mode or self.max_length is None:
            max_batches = progress.initial_batch + 1
        else:
            max_batches = batches_of(self.max_length, epoch_length)
        return Boundaries(
            max_batches,
            validation=self.validation_period,
            checkpoint=self.checkpoint_period,
            report=self.reporting_period,
            epoch_length=epoch_length,
        )

    @property
    def policy(self) -> CheckpointPolicy:
        """Which validations are followed by a checkpoint."""
        return CheckpointPolicy(self.checkpoint_policy)


def _check_length(length: object, *, is_needed: bool) -> None:
    if length is None and not is_needed:
        return
    if length is None:
        do = "Pass max_length, such as max_length=Epoch(1) or max_length=Batch(1000)."
        raise ConfigurationError("fit() does not know how long to train, got max_length=None.", do=do)
    if not isinstance(length, (Batch, Epoch)) or not _is_integer(length.value):
        raise ArgumentTypeError(
            f"max_length must be Batch or Epoch of an int, such as Epoch(1), got max_length={length!r}."
        )
    if cast("int", length.value) < 0:
        raise ConfigurationError(f"max_length must be at least 0, got {length!r}.")


def _check_period(name: str, period: object) -> None:
    if period is None and name != "reporting_period":
        return
    if not isinstance(period, (Batch, Epoch)) or not (_is_integer(period.value) or _is_schedule(period.value)):
        wanted = "Batch or Epoch of an int or of ints, such as Batch(100) or Epoch([1, 5, 10])"
        raise ArgumentTypeError(f"{name} must be {wanted}, got {name}={period!r}.")


def _is_integer(value: object) -> bool:
    """Whether a value is an integer of Python or NumPy, but not a bool."""
    return isinstance(value, (int, Integral)) and not isinstance(value, bool)


def _is_schedule(value: object) -> bool:
    return isinstance(value, Container) and not isinstance(value, (str, bytes))


def _check_policy(policy: object) -> None:
    if policy not in list(CheckpointPolicy):
        raise ConfigurationError(f'checkpoint_policy must be "best", "all" or "none", got {policy!r}.')


def _check_path(name: str, value: object) -> None:
    if value is not None and not isinstance(value, (str, Path)):
        raise ArgumentTypeError(f"{name} must be the uuid or the path of a checkpoint, or None, got {name}={value!r}.")
