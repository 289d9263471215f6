"""The errors of trials; each names the given value, the expected value and the remedy."""

from __future__ import annotations

from pa_checkpoint import CheckpointError, CheckpointNotFoundError, ExplainedError


class ConfigurationError(ExplainedError, ValueError):
    """An argument has an invalid value; the base class of several errors of trials.

    It is a ``ValueError``. Its message names the given value and the remedy. The parts of the message are in the
    attributes ``problem``, ``given``, ``expected`` and ``do``.
    """


class ArgumentTypeError(ExplainedError, TypeError):
    """An argument has the wrong type; the base class of several errors of trials.

    It is a ``TypeError``. Its message names the given value and the remedy. The parts of the message are in the
    attributes ``problem``, ``given``, ``expected`` and ``do``.
    """


class UnsupportedConfigurationError(ExplainedError, RuntimeError):
    """Every argument is valid, but this environment or combination is not supported.

    It is a ``RuntimeError``. Its message names the problem and the remedy. The parts of the message are in the
    attributes ``problem``, ``given``, ``expected`` and ``do``.
    """


class InvalidExperimentException(ConfigurationError):
    """A trial is incomplete, or a method of its context was used in a wrong way; change the script as the message says.

    ``init`` raises it for invalid settings, such as a batch size that is smaller than the number of processes. The
    ``wrap_`` methods of the context and ``step_optimizer`` raise it if they are used in a wrong way, and
    ``Trainer.fit`` for an incomplete trial, for example without a wrapped model. It is a ``ValueError``. For
    hyperparameters that your own code rejects, raise ``InvalidHP`` instead.

    Args:
        problem: A sentence that names the problem.
        given: The found value; empty if the problem names it.
        expected: A description of a correct value; empty if the problem describes it.
        do: The change that solves the problem.

    Attributes:
        problem: As passed. ``given``, ``expected`` and ``do`` are also attributes.

    Example:
        >>> import pa_trial
        >>> with pa_trial.init() as context:
        ...     try:
        ...         context.configure_apex_amp([], [])
        ...     except pa_trial.InvalidExperimentException as error:
        ...         print(error.do)
        Call context.experimental.use_amp() before the models are wrapped.
    """


class InternalException(ExplainedError, RuntimeError):
    """A method was called at the wrong time: before ``fit``, during ``fit``, or after the block of ``init``.

    The methods of the context raise it, for example ``current_train_batch`` before training and ``wrap_model`` during
    it. ``Trainer`` and the collectives of a ``DistributedContext`` raise it after the block of ``init`` has ended. It
    is a ``RuntimeError``. Move the call to the place that the message names.

    Args:
        problem: A sentence that names the call and the problem.
        given: The found value; usually empty.
        expected: A description of a correct value; usually empty.
        do: The place to call it from instead.

    Attributes:
        problem: As passed. ``given``, ``expected`` and ``do`` are also attributes.

    Example:
        >>> import pa_trial
        >>> with pa_trial.init() as context:
        ...     try:
        ...         context.current_train_batch()  # before Trainer.fit
        ...     except pa_trial.InternalException as error:
        ...         print(error.do)
        Call it from train_batch, or from a callback during training.
    """


class InvalidCheckpointException(CheckpointError):
    """A checkpoint is damaged or belongs to a different trial; nothing was loaded from it.

    ``Trainer.fit`` raises it for ``latest_checkpoint`` and ``warm_start``, and ``load_trial_from_checkpoint_path`` for
    its path. It is a ``pa_checkpoint.CheckpointError``, and therefore a ``RuntimeError`` and not a ``ValueError``. Pass
    an intact checkpoint of the same trial: ``context.get_latest_checkpoint()`` returns the newest intact checkpoint of
    a folder. If there is no checkpoint at all, ``CheckpointNotFound`` or ``NoCheckpointError`` is raised instead.

    Args:
        problem: A sentence that names the problem.
        given: The path of the checkpoint and the details, for example the damaged file.
        expected: A description of a correct checkpoint; often empty.
        do: The action that solves the problem.

    Attributes:
        problem: As passed. ``given``, ``expected`` and ``do`` are also attributes.

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

    ``Trainer.fit`` raises it for ``latest_checkpoint`` and ``warm_start``, before it trains. It is a
    ``pa_checkpoint.CheckpointNotFoundError`` and so a ``FileNotFoundError``. Pass a name from the folder of
    ``init(checkpoint_dir=...)``, the path of a checkpoint, or None to begin a new training. If there is a checkpoint
    but it cannot be used, ``InvalidCheckpointException`` is raised instead.

    Args:
        problem: A sentence that names the problem.
        given: The name or path that was passed.
        expected: A description of a correct name or path.
        do: The action that solves the problem.

    Attributes:
        problem: As passed. ``given``, ``expected`` and ``do`` are also attributes.

    Example:
        >>> import pa_trial
        >>> def resume(trainer, uuid):
        ...     try:
        ...         trainer.fit(max_length=pa_trial.Epoch(10), latest_checkpoint=uuid)
        ...     except pa_trial.CheckpointNotFound as error:
        ...         raise SystemExit(f"Look for the checkpoint elsewhere: {error.given}")
    """


class NoCheckpointError(CheckpointNotFound, AssertionError):
    """The folder passed to ``load_trial_from_checkpoint_path`` does not contain any checkpoint files.

    Only this function raises the error; ``Trainer.fit`` raises the base class, ``CheckpointNotFound``. It is also an
    ``AssertionError``, so ``except`` clauses of scripts for Determined still catch it. Pass the folder of a checkpoint,
    which is a subfolder of ``init(checkpoint_dir=...)`` with the name of the checkpoint.

    Args:
        problem: A sentence that names the problem.
        given: The path that was passed, and whether it exists.
        expected: A description of a correct path.
        do: The action that solves the problem.

    Attributes:
        problem: As passed. ``given``, ``expected`` and ``do`` are also attributes.

    Example:
        >>> import pa_trial
        >>> try:
        ...     pa_trial.load_trial_from_checkpoint_path("no/such/folder")
        ... except pa_trial.NoCheckpointError as error:
        ...     print(error.given)
        no/such/folder, which does not exist
    """


class CheckFailedError(ExplainedError, ValueError):
    """Metrics have different names in some batches or on some processes.

    ``Trainer.fit`` raises it at the end of a workload (the batches between two reports, validations or checkpoints) or
    in a validation. It is a ``ValueError``. Return the same keys from ``train_batch`` for each batch, and the same keys
    from ``evaluate_batch``. If ``train_batch`` has no value for a metric in a batch, return None for it.

    Args:
        problem: A sentence that names the method.
        given: The names of the metrics in both places.
        expected: Empty: the problem describes it.
        do: The change that solves the problem.

    Attributes:
        problem: As passed. ``given``, ``expected`` and ``do`` are also attributes.

    Example:
        >>> import pa_trial
        >>> def train_batch(self, batch, epoch_idx, batch_idx):  # a method of a trial
        ...     metrics = {"loss": self.update(batch)}
        ...     if batch_idx % 100 == 0:
        ...         metrics["norm"] = self.norm()  # fit raises CheckFailedError: only some batches have it
        ...     return metrics
        >>> def train(trainer):
        ...     try:
        ...         trainer.fit(max_length=pa_trial.Epoch(1))
        ...     except pa_trial.CheckFailedError as error:
        ...         print(error.given)
    """


class NoMetricsError(ArgumentTypeError, AttributeError):
    """A method of a trial returned a value without metrics, such as None.

    ``Trainer.fit`` raises it after ``train_batch``, ``evaluate_batch`` or ``evaluate_full_dataset``. It is a
    ``TypeError`` and, as in Determined, also an ``AttributeError``. Add the missing ``return``. Return a dictionary of
    metrics by name; ``train_batch`` may also return only the loss, a tensor.

    Args:
        problem: A sentence that names the method and the type of its return value.
        given: Empty: the problem names it.
        expected: Empty: ``do`` describes it.
        do: The change that solves the problem.

    Attributes:
        problem: As passed. ``given``, ``expected`` and ``do`` are also attributes.

    Example:
        >>> import pa_trial
        >>> def train(trainer):
        ...     try:
        ...         trainer.fit(max_length=pa_trial.Epoch(1))
        ...     except pa_trial.NoMetricsError as error:
        ...         print(error.problem)  # such as: train_batch returned no metrics, but None.
    """


class EmptyLoaderError(ConfigurationError, RuntimeError):
    """A data loader of the trial has no batches, so nothing could be trained or validated.

    ``Trainer.fit`` raises it for the training loader before it trains, or in an epoch whose sampler yields nothing, and
    for the validation loader in a validation. It is a ``ValueError`` and a ``RuntimeError``. Common causes are a wrong
    path, ``drop_last=True`` with few samples, and an iterator, which can be used only once.

    Args:
        problem: A sentence that names the loader.
        given: The class of the loader, and in which way it is empty.
        expected: Empty: the problem describes it.
        do: The things to check.

    Attributes:
        problem: As passed. ``given``, ``expected`` and ``do`` are also attributes.

    Example:
        >>> import pa_trial
        >>> def train(trainer):
        ...     try:
        ...         trainer.fit(max_length=pa_trial.Epoch(1))
        ...     except pa_trial.EmptyLoaderError as error:
        ...         raise SystemExit(f"There are no samples. {error.do}")
    """


class UsageError(ArgumentTypeError, AssertionError):
    """An argument has the wrong type, or a method of the trial returned a value of the wrong type.

    The following calls raise it: ``context.set_stop_requested``, ``context.set_enable_tensorboard_logging`` and
    ``Trainer.fit`` for a value that is not a bool; ``context.wrap_reducer`` for something that is not a reducer, or is
    wrapped already; ``Trainer.fit`` if ``build_callbacks`` does not return a dictionary of callbacks or a loader method
    does not return a loader; and ``DistributedContext`` on several machines without ``chief_ip``. It is a ``TypeError``
    and also an ``AssertionError``, so ``except`` clauses of scripts for Determined still catch it. Pass or return a
    value of the type that the message names.

    Args:
        problem: A sentence that names the argument or the method, and the value.
        given: The found value; empty if the problem names it.
        expected: A description of a correct value; usually empty, because the problem describes it.
        do: The change that solves the problem; empty if the problem says everything.

    Attributes:
        problem: As passed. ``given``, ``expected`` and ``do`` are also attributes.

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
    """A metric reducer failed, or returned a value that does not fit its name.

    ``Trainer.fit`` raises it at the end of a training workload or a validation. If a method of the reducer raised an
    error, that error is the ``__cause__``. If there is no cause, ``cross_slot_reduce`` returned a dictionary although
    the reducer was wrapped with a name, or no dictionary although it was wrapped without a name. It is a
    ``UsageError``, and therefore a ``TypeError``, and also a ``ValueError``.

    Args:
        problem: A sentence that names the reducer, its method and the error.
        given: The returned value; empty if a method failed.
        expected: Empty: the problem describes it.
        do: The change that solves the problem; empty if a method failed.

    Attributes:
        problem: As passed. ``given``, ``expected`` and ``do`` are also attributes.

    Example:
        >>> import pa_trial
        >>> def train(trainer):
        ...     try:
        ...         trainer.fit(max_length=pa_trial.Epoch(1))
        ...     except pa_trial.MetricReducerError as error:
        ...         print(error.problem, "caused by", repr(error.__cause__))
    """


class InvalidHP(Exception):  # the documented name
    """Raise this in a trial whose hyperparameters are invalid; the program then exits cleanly with status 0.

    Raise it in ``__init__`` or any other method of the trial, within the ``with`` block of ``init``, which turns it
    into ``SystemExit(0)``. A hyperparameter search then treats the trial as ended, and not as failed. If the error is
    raised during training, ``fit`` first saves a checkpoint, unless the last checkpoint is current. The class is a
    plain ``Exception``. Pass a message, which is logged as a warning. For an incorrect script, the library itself
    raises ``InvalidExperimentException``.

    On several processes, raise it on all of them. This is always the case if the condition depends only on the
    hyperparameters. If a single process raises it, that process ends without a checkpoint, because saving needs all
    processes, and the launcher ends the others.

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
