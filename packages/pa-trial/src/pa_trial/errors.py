"""The errors of trials; each names the given value, the expected value and the remedy."""

from __future__ import annotations

from pa_checkpoint import CheckpointError, CheckpointNotFoundError, ExplainedError


class ConfigurationError(ExplainedError, ValueError):
    """An argument has a value that cannot work."""


class ArgumentTypeError(ExplainedError, TypeError):
    """An argument has the wrong type."""


class UnsupportedConfigurationError(ExplainedError, RuntimeError):
    """Every argument is valid, but this environment or combination is not supported."""


class InvalidExperimentException(ConfigurationError):
    """A trial, or a call of its context, cannot work; like all errors here, it derives from ``Exception``."""


class InternalException(ExplainedError, RuntimeError):
    """Something was requested at the wrong time, such as the current batch before training."""


class InvalidCheckpointException(CheckpointError):
    """A checkpoint is damaged or belongs to another trial; nothing was loaded from it."""


class CheckpointNotFound(CheckpointNotFoundError):
    """No checkpoint has this name."""


class NoCheckpointError(CheckpointNotFound, AssertionError):
    """The folder has none of the files of a checkpoint."""


class CheckFailedError(ExplainedError, ValueError):
    """Metrics have different names in some batches or on some processes."""


class NoMetricsError(ArgumentTypeError, AttributeError):
    """A method of a trial returned a value without metrics; an ``AttributeError`` too, as in Determined."""


class EmptyLoaderError(ConfigurationError, RuntimeError):
    """A data loader has no batches."""


class UsageError(ArgumentTypeError, AssertionError):
    """An argument, or the return value of a method of the trial, has the wrong type."""


class MetricReducerError(UsageError, ValueError):
    """A metric reducer failed, or returned a value that cannot be a metric."""


class InvalidHP(Exception):  # the documented name
    """Raised by a trial whose hyperparameters cannot work; the program then exits cleanly with status 0.

    If it is raised in the course of training, a checkpoint is saved first unless the last checkpoint is current.

    Example:
        >>> def build_layer(size: int) -> None:
        ...     if size > 1024:
        ...         raise InvalidHP(f"a layer of {size} would not fit")
        >>> build_layer(2048)
        Traceback (most recent call last):
        ...
        pa_trial.errors.InvalidHP: a layer of 2048 would not fit
    """
