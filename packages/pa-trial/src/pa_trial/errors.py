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
    """A trial, or a call of its context, cannot work; the message says how to change the script.

    Example:
        >>> import pa_trial
        >>> with pa_trial.init() as context:
        ...     context.configure_apex_amp([], [])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        pa_trial.errors.InvalidExperimentException: Mixed precision with Apex is not supported...
    """


class InternalException(ExplainedError, RuntimeError):
    """Something was requested at the wrong time: before ``fit``, during it, or after the block of ``init``.

    Example:
        >>> import pa_trial
        >>> with pa_trial.init() as context:
        ...     try:
        ...         context.current_train_batch()  # before Trainer.fit
        ...     except pa_trial.InternalException:
        ...         print("not yet")
        not yet
    """


class InvalidCheckpointException(CheckpointError):
    """A checkpoint is damaged or belongs to another trial; nothing was loaded from it.

    ``Trainer.fit`` and ``load_trial_from_checkpoint_path`` raise it; ``given`` names the checkpoint and the problem.

    Example:
        >>> import pa_trial
        >>> def load_or_none(path):
        ...     try:
        ...         return pa_trial.load_trial_from_checkpoint_path(path)
        ...     except pa_trial.InvalidCheckpointException as error:
        ...         print(error.problem, error.given)
        ...         return None
    """


class CheckpointNotFound(CheckpointNotFoundError):
    """No checkpoint has the name or the path that was passed to ``Trainer.fit``.

    Example:
        >>> import pa_trial
        >>> def resume(trainer, uuid):
        ...     try:
        ...         trainer.fit(max_length=pa_trial.Epoch(10), latest_checkpoint=uuid)
        ...     except pa_trial.CheckpointNotFound as error:
        ...         raise SystemExit(f"Look for the checkpoint elsewhere: {error.given}")
    """


class NoCheckpointError(CheckpointNotFound, AssertionError):
    """The folder passed to ``load_trial_from_checkpoint_path`` has none of the files of a checkpoint.

    Example:
        >>> import pa_trial
        >>> try:
        ...     pa_trial.load_trial_from_checkpoint_path("no/such/folder")
        ... except pa_trial.NoCheckpointError as error:
        ...     print(error.given)
        no/such/folder, which does not exist
    """


class CheckFailedError(ExplainedError, ValueError):
    """Metrics have different names in some batches or on some processes; ``Trainer.fit`` raises it.

    Return the same keys from ``train_batch``, and from ``evaluate_batch``, for each batch.
    """


class NoMetricsError(ArgumentTypeError, AttributeError):
    """A method of a trial returned a value without metrics, such as None; ``Trainer.fit`` raises it.

    It is an ``AttributeError`` too, as in Determined.
    """


class EmptyLoaderError(ConfigurationError, RuntimeError):
    """A data loader of the trial has no batches, so nothing could be trained; ``Trainer.fit`` raises it."""


class UsageError(ArgumentTypeError, AssertionError):
    """An argument, or the return value of a method of the trial, has the wrong type.

    Example:
        >>> import pa_trial
        >>> with pa_trial.init() as context:
        ...     try:
        ...         context.set_stop_requested("yes")
        ...     except pa_trial.UsageError as error:
        ...         print(error.problem)
        stop_requested must be True or False, got 'yes'.
    """


class MetricReducerError(UsageError, ValueError):
    """A metric reducer failed, or returned a value that cannot be a metric; ``Trainer.fit`` raises it.

    The error of a reducer that failed is its ``__cause__``.
    """


class InvalidHP(Exception):  # the documented name
    """Raised by a trial whose hyperparameters cannot work; the program then exits cleanly with status 0.

    Raise it in ``__init__`` or any other method of the trial, within the ``with`` block of ``init``, which turns it
    into ``SystemExit(0)``: to a search over hyperparameters, the trial has ended, not failed. If it is raised in the
    course of training, ``fit`` saves a checkpoint first, unless the last checkpoint is current.

    On several processes, raise it on all of them, which a condition on the hyperparameters does. A process that raises
    it alone ends without a checkpoint, which needs all processes, and the others are ended by the launcher.

    Example:
        >>> import pa_trial
        >>> try:
        ...     with pa_trial.init(hparams={"size": 2048}) as context:
        ...         if (size := context.get_hparam("size")) > 1024:  # usually in __init__ of the trial
        ...             raise pa_trial.InvalidHP(f"a layer of {size} would not fit")
        ... except SystemExit as exit:
        ...     print(exit.code, exit.__cause__)
        0 a layer of 2048 would not fit
    """
