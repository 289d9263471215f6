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
    """A trial, or a request to its context, cannot work. Like all errors here, it derives from ``Exception``."""


class InternalException(ExplainedError, RuntimeError):
    """Something was requested at the wrong time, such as the current batch before training."""


class InvalidCheckpointException(CheckpointError):
    """A checkpoint is damaged or belongs to another trial; nothing was loaded from it."""


class CheckpointNotFound(CheckpointNotFoundError):
    """No checkpoint has this name."""


class NoCheckpointError(CheckpointNotFound, AssertionError):
    """The folder has none of the files of a checkpoint."""


class CheckFailedError(ExplainedError, ValueError):
    """Something that has to be the same in all batches differs, such as the names of the metrics."""


class NoMetricsError(ArgumentTypeError, AttributeError):
    """A method of a trial returned something that holds no metrics; an ``AttributeError`` too, as in Determined."""


class EmptyLoaderError(ConfigurationError, RuntimeError):
    """A data loader has no batches."""


class UsageError(ArgumentTypeError, AssertionError):
    """An argument, or a value that your method returned, is of the wrong kind."""


class MetricReducerError(UsageError, ValueError):
    """A metric reducer returned something that has no meaning as a metric."""


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
