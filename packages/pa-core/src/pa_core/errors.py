"""Errors with four parts: the problem, the given value, the expected value and what to do.

Each error also derives from the built-in exception a Python user would catch for the same mistake, so
``except ValueError`` keeps working:

    >>> issubclass(ConfigurationError, ValueError), issubclass(MetricNotFoundError, KeyError)
    (True, True)
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from signal import Signals
from typing import Any, TypeGuard

from pa_checkpoint import CheckpointError, CheckpointNotFoundError, ExplainedError, FolderInUseError
from pa_data.errors import EmptyDatasetError
from pa_distributed import OtherProcessError, RanksDifferError

__all__ = [
    "ArgumentTypeError",
    "BatchMismatchError",
    "BatchOutputError",
    "CheckpointError",
    "CheckpointNotFoundError",
    "ConfigurationError",
    "EmptyDatasetError",
    "ExplainedError",
    "FolderInUseError",
    "MetricNotFoundError",
    "NonFiniteLossError",
    "OtherProcessError",
    "OverrideError",
    "RanksDifferError",
    "SmallerBatchNeeded",
    "StopTrainingError",
    "TrainingPreempted",
    "UnsupportedConfigurationError",
]


class ConfigurationError(ExplainedError, ValueError):
    """An argument has a value that cannot work, or a method was called at the wrong time.

    Examples are a negative number of epochs, an unknown metric name, and ``Run.backward`` outside of the loop. It is
    the most common error in this library. Constructors, ``train()``, ``evaluate()``, ``predict()``, ``Run`` and most
    callbacks raise it before they change anything. Correct the call as the message says.

    It derives from ``ExplainedError`` and ``ValueError``, so ``except ValueError`` catches it. An argument of the wrong
    type raises ``ArgumentTypeError`` instead, and a missing package or an unsupported combination of valid arguments
    raises ``UnsupportedConfigurationError``.

    The four arguments are also attributes; ``str(error)`` shows each argument that is not empty on its own line.

    Args:
        problem: A sentence that states the problem; no other argument is needed if it contains the given and the
            expected value.
        given: The actual value, as a string; not shown if it is empty (the default).
        expected: A description of a correct value; not shown if it is empty (the default).
        do: What to do about the problem; not shown if it is empty (the default).

    Example:
        >>> import torch
        >>> from pa_core import ConfigurationError, Trainer
        >>> from pa_core.testing import make_regression
        >>> model = torch.nn.Linear(4, 1)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[])
        >>> try:
        ...     trainer.train(make_regression(8), num_epochs=-1)
        ... except ConfigurationError as error:
        ...     print(error.problem)
        num_epochs must be a whole number of at least 1, got -1.
    """


class ArgumentTypeError(ExplainedError, TypeError):
    """An argument has the wrong type, for example a class instead of an instance.

    The constructors of ``Trainer`` and ``Run``, ``train()``, ``add_module``, ``register_for_checkpointing``, ``gather``
    and some callbacks raise it before they change anything. Pass an object of the type that the message names. A number
    or a dataset that cannot be used raises ``ConfigurationError`` instead, even if it has the wrong type, for example a
    string in place of a number.

    It derives from ``ExplainedError`` and ``TypeError``, so ``except TypeError`` catches it.

    The four arguments are also attributes; ``str(error)`` shows each argument that is not empty on its own line.

    Args:
        problem: A sentence that states the problem; no other argument is needed if it contains the given and the
            expected type.
        given: The actual value, as a string; not shown if it is empty (the default).
        expected: A description of a correct value; not shown if it is empty (the default).
        do: What to do about the problem; not shown if it is empty (the default).

    Example:
        >>> import torch
        >>> from pa_core import ArgumentTypeError, Trainer
        >>> try:
        ...     Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss, None)  # the class, not an instance of it
        ... except ArgumentTypeError as error:
        ...     print(error)
        The loss function is a class.
          given:    loss_func=nn.MSELoss
          do:       Create it: loss_func=nn.MSELoss().
    """


class UnsupportedConfigurationError(ExplainedError, RuntimeError):
    """Every argument is valid, but the environment does not support the request, or the arguments cannot be combined.

    Typical causes are a package that is not installed, two trainers in a process that use different devices or
    precisions, a feature that sharded or reproducible runs do not support, and processes that cannot be connected.
    Constructors, ``train()``, ``predict()``, ``connect()`` and some callbacks raise it. The message says what to do:
    install the package, leave out an argument, or use a separate process.

    It derives from ``ExplainedError`` and ``RuntimeError``, so ``except RuntimeError`` catches it, but
    ``except ValueError`` does not.

    The four arguments are also attributes; ``str(error)`` shows each argument that is not empty on its own line.

    Args:
        problem: A sentence that states the problem.
        given: The actual value, as a string; not shown if it is empty (the default).
        expected: A description of a supported value; not shown if it is empty (the default).
        do: What to do about the problem; not shown if it is empty (the default).

    Example:
        >>> import torch
        >>> from pa_core import Trainer, UnsupportedConfigurationError
        >>> trainer = Trainer(torch.nn.Linear(4, 1), torch.nn.MSELoss(), None)
        >>> try:
        ...     Trainer(torch.nn.Linear(4, 1), torch.nn.MSELoss(), None, mixed_precision="bf16")
        ... except UnsupportedConfigurationError as error:
        ...     print(str(error)[-51:])
        Pass the same here, or train in a separate process.
    """


class StopTrainingError(Exception):
    """An exception that your callback or hook raises to end a run early, for example because the model is good enough.

    Raise it in any callback event, or in a hook or a step of your trainer, on one process or on all. It also works in
    the loop of a ``Run``, but every process must raise it there; to stop from a single process, call
    ``Run.request_stop``. The other callbacks are still called for the same event. Then ``on_stop_training_error`` and
    ``on_training_run_end`` are called, and ``train()`` returns normally. You need not catch the error, and it does not
    count as a failure. With several processes, the other processes are told with the next update, and all processes
    stop at the same update.

    If the model is sharded (its parameters are split over the processes), raising it in a step causes an
    ``UnsupportedConfigurationError``, because the other processes are waiting for this process. Raise it in a callback
    instead. Do the same if you use ``ConvertSyncBatchNormCallback``, because its layers wait for the other processes in
    each step.

    It derives directly from ``Exception`` and takes the same arguments. Pass the reason as a string, which
    ``PrintProgressCallback`` prints. ``NonFiniteLossError`` derives from it, but ``train()`` does raise that error.

    Example:
        >>> import torch
        >>> from pa_core import AnyTrainer, StopTrainingError, Trainer, TrainerCallback
        >>> from pa_core.testing import make_regression
        >>> class StopAfterUpdate(TrainerCallback):
        ...     def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: object) -> None:
        ...         if update == 3:
        ...             raise StopTrainingError("Three updates are enough.")
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[StopAfterUpdate])
        >>> trainer.train(make_regression(64), num_epochs=1)
        >>> trainer.num_updates_completed
        3
    """


class BatchMismatchError(ExplainedError, RuntimeError, ValueError, TypeError, IndexError):
    """The samples, the model and the loss function of a default step do not fit together.

    ``train()``, ``evaluate()`` and ``predict()`` raise it in the trainer's own implementations of
    ``calculate_train_batch_loss``, ``calculate_eval_batch_loss`` and ``predict_batch``. It is raised if torch would
    silently compare outputs with the wrong targets, for example by broadcasting, or if the arguments of the model do
    not match the items of the batch. If torch itself raises an error, you get torch's error, with notes about shapes
    and dtypes. Reshape or convert the targets as the message says, or override the step.

    It derives from ``ExplainedError``, and is also caught as a ``RuntimeError``, a ``ValueError``, a ``TypeError`` or
    an ``IndexError``, because torch raises any of these for such batches.

    The four arguments are also attributes; ``str(error)`` shows each argument that is not empty on its own line.

    Args:
        problem: A sentence that states the problem.
        given: The shapes and dtypes of the batch, as a string; not shown if it is empty (the default).
        expected: The shapes or dtypes that fit; not shown if it is empty (the default).
        do: What to do about the problem; not shown if it is empty (the default).

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from pa_core import Trainer
        >>> model = torch.nn.Linear(4, 1)
        >>> samples = TensorDataset(torch.zeros(8, 4), torch.zeros(8))
        >>> trainer = Trainer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[])
        >>> trainer.train(samples, num_epochs=1)
        Traceback (most recent call last):
        ...
        pa_core.errors.BatchMismatchError: The model's outputs and the targets do not fit the loss function.
          given:    outputs of shape (8, 1), targets of shape (8,), in training step 1 of epoch 1
          expected: outputs and targets of the same shape, which are compared element by element
          do:       Add the last dimension to the targets: targets.unsqueeze(1).
    """

    def name_step(self, step: str) -> None:
        """Append the step of the run to ``given``, so that the message says where the error happened.

        The trainer calls it before it passes the error on; you need not call it. A custom loop that calls a trainer's
        step itself can call it once in its ``except`` block.

        Args:
            step: The step, in words that follow "in", for example ``"training step 3 of epoch 1"``.

        Example:
            >>> from pa_core import BatchMismatchError
            >>> error = BatchMismatchError("The targets do not fit.", given="targets of shape (8,)")
            >>> error.name_step("training step 3 of epoch 1")
            >>> error.given
            'targets of shape (8,), in training step 3 of epoch 1'
        """
        self.given: str = f"{self.given}, in {step}"
        self.args: tuple[Any, ...] = (self.problem, self.given, self.expected, self.do)


class BatchOutputError(ExplainedError, TypeError):
    """The run cannot use the values that a step or ``predict_batch`` returned, or that were passed to ``backward``.

    ``train()`` and ``evaluate()`` raise it, usually in the first step, if ``calculate_train_batch_loss`` or
    ``calculate_eval_batch_loss`` does not return a dictionary with the keys ``loss`` (a tensor with one element and, in
    training, with an autograd graph), ``model_outputs`` and ``batch_size`` (a whole number). ``Run.backward`` and
    ``Run.log`` raise it for a ``num_items`` that is not a whole number. ``predict(write=...)`` raises it if the
    predictions are not rows that fit the file. Correct the returned values as the message says.

    It derives from ``ExplainedError`` and ``TypeError``, so ``except TypeError`` catches it.

    The four arguments are also attributes; ``str(error)`` shows each argument that is not empty on its own line.

    Args:
        problem: A sentence that names the problem and the method.
        given: The returned value, as a string; not shown if it is empty (the default).
        expected: A description of a correct value; not shown if it is empty (the default).
        do: What to do about the problem; not shown if it is empty (the default).

    Example:
        >>> import torch
        >>> from pa_core import Trainer
        >>> from pa_core.testing import make_regression
        >>> class ReturnsFloat(Trainer):
        ...     def calculate_eval_batch_loss(self, batch):
        ...         return {**super().calculate_eval_batch_loss(batch), "loss": 0.5}
        >>> ReturnsFloat(torch.nn.Linear(4, 1), torch.nn.MSELoss(), None, callbacks=[]).evaluate(make_regression(8))
        Traceback (most recent call last):
        ...
        pa_core.errors.BatchOutputError: The trainer cannot use the outputs of calculate_eval_batch_loss.
          given:    a loss of type float
          do:       Return the loss as the tensor that the loss function returned, without item() or float().
    """


class OverrideError(ExplainedError, TypeError):
    """A subclass of a trainer has a method that would break the training loop, or that would never be called.

    The ``class`` statement raises it, so you see it before any run. It is raised if the class, or a mixin of it,
    defines a private name of the trainer (rename the method), or a method of pytorch-accelerated that this library does
    not call (the message names the replacement). A method whose name is only close to a method of the loop, for example
    because of a typo, causes a ``UserWarning`` instead.

    It derives from ``ExplainedError`` and ``TypeError``, so ``except TypeError`` around the class statement catches it.

    The four arguments are also attributes; ``str(error)`` shows each argument that is not empty on its own line.

    Args:
        problem: A sentence that names the class and the method, and says what to do.
        given: The actual value, as a string; not shown if it is empty (the default).
        expected: A description of a correct value; not shown if it is empty (the default).
        do: What to do about the problem; not shown if it is empty (the default).

    Example:
        A private method of the trainer would be replaced::

            try:
                class MyTrainer(Trainer):
                    def _run_epoch(self, epoch): ...
            except OverrideError as error:
                print(error)  # MyTrainer._run_epoch would replace a private part of the trainer's loop. Rename ...
    """


class NonFiniteLossError(ExplainedError, StopTrainingError, ArithmeticError):
    """The run ended because a loss became NaN or infinite, or because gradients in fp16 always overflow.

    ``train()``, ``evaluate()`` and the ``with`` block of a ``Run`` raise it, so that the script exits with status 1. It
    is raised if ``TerminateOnNaNCallback``, a default callback of ``Trainer``, finds such a loss. With
    ``mixed_precision="fp16"``, it is also raised without the callback if the gradients overflow at every scale. Before
    the error is raised, ``on_stop_training_error`` and ``on_training_run_end`` are called, as for any
    ``StopTrainingError``. Lower the learning rate, clip the gradients with ``gradient_clip_norm``, or check the batch
    that the message names.

    It derives from ``ExplainedError``, ``StopTrainingError`` and ``ArithmeticError``, so ``except ArithmeticError``
    catches it, for example in a search over learning rates.

    The four arguments are also attributes; ``str(error)`` shows each argument that is not empty on its own line.

    Args:
        problem: A sentence that says which loss it is.
        given: The value of the loss, and its batch, as a string; not shown if it is empty (the default).
        expected: A description of a correct value; not shown if it is empty (the default).
        do: What to do about the problem; not shown if it is empty (the default).

    Example:
        >>> import torch
        >>> from pa_core import NonFiniteLossError, TerminateOnNaNCallback, Trainer
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=1e38)
        >>> samples = torch.utils.data.TensorDataset(torch.ones(32, 1), torch.zeros(32, 1))
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[TerminateOnNaNCallback])
        >>> try:
        ...     trainer.train(samples, num_epochs=1)
        ... except NonFiniteLossError as error:
        ...     print(error.problem)
        The training loss is not finite.
    """


class TrainingPreempted(SystemExit):  # not an error: it ends a script like SystemExit
    """The run was interrupted because its machine will be taken away; a training state is saved, and the script ends.

    ``train()`` and the loops of a ``Run`` raise it on every process after a preemption was requested, either by a
    signal that ``SaveTrainingStateCallback`` watches, for example SIGTERM from a scheduler, or by
    ``trainer.request_preemption()``. Without that callback, no state is saved. Leave it uncaught, so that the script
    ends without a traceback and with exit status 75 (``EX_TEMPFAIL`` in ``sysexits.h``, a temporary failure). This
    status tells a scheduler that it can start the same script again, and ``train(resume_from=...)`` then continues the
    run.

    It derives from ``SystemExit``, so neither ``except Exception`` nor ``except ValueError`` catches it, but
    ``finally`` blocks still run. To clean up, catch ``TrainingPreempted`` and raise it again.

    Args:
        reason: Why the run was preempted. If several processes had a reason, it is the reason of the one with the
            lowest rank. The default is an empty string.
        signal: The signal that preempted the run. The default, None, means that it was not a signal.

    Attributes:
        STATUS: The exit status, 75, which is also the ``code`` of each instance.
        reason: The reason, which is the same on all processes: the name of a signal, "the deadline", or the argument of
            ``request_preemption``; empty if none was given.
        signal: The signal, or None.

    Example:
        >>> import torch
        >>> from pa_core import AnyTrainer, Trainer, TrainerCallback, TrainingPreempted
        >>> from pa_core.testing import make_regression
        >>> class Preempt(TrainerCallback):
        ...     def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: object) -> None:
        ...         trainer.request_preemption("an example")
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[Preempt])
        >>> try:
        ...     trainer.train(make_regression(64), num_epochs=1)
        ... except TrainingPreempted as preempted:
        ...     print(f"status {preempted.code} after update {trainer.num_updates_completed}: {preempted.reason}")
        status 75 after update 1: an example
    """

    STATUS = 75

    def __init__(self, reason: str = "", signal: Signals | None = None) -> None:
        super().__init__(self.STATUS)
        self.reason = reason
        self.signal = signal


class SmallerBatchNeeded(SystemExit):  # not an error: it ends a script like SystemExit
    """With ``per_device_batch_size="fit"``, a batch did not fit into memory; the script ends and must be started again.

    ``train()`` and the ``with`` block of a ``Run`` raise it if an accelerator runs out of memory after the trial
    updates that chose the batch size. Before they raise it, they write a note with half the batch size to the folder of
    ``SaveTrainingStateCallback``, and print a line to stderr. Without such a folder, torch's own memory error is raised
    instead, with advice. Leave it uncaught, so that the script exits with status 75, and start the script again with
    ``resume_from``. The run then continues with smaller batches, but with the same updates.

    It derives from ``SystemExit``, so ``except Exception`` does not catch it. It has no arguments. Its ``__cause__`` is
    torch's memory error.

    Attributes:
        STATUS: The exit status, 75, which ``TrainingPreempted`` also has. It is also the ``code`` of each instance.

    Example:
        Clean up before the script ends::

            try:
                trainer.train(samples, num_epochs=10, samples_per_update=512, per_device_batch_size="fit",
                              resume_from="states", resume_missing="start")
            except SmallerBatchNeeded:
                remove_temporary_files()
                raise  # exit status 75: the job script starts the script again
    """

    STATUS = TrainingPreempted.STATUS

    def __init__(self) -> None:
        super().__init__(self.STATUS)


class MetricNotFoundError(ExplainedError, KeyError, ValueError):
    """A requested metric was never recorded.

    ``RunHistory.get_latest_metric`` without a default, ``delete_metric``, ``records`` and ``plot_run_history`` raise
    it; ``train()`` raises it if a ``watch_metric`` was not recorded by the end of the first epoch. The message lists
    the recorded metrics. Correct the name (a prefix such as ``eval_`` and the suffix ``_epoch`` are parts of it),
    record the metric with ``update_metric`` first, or pass a ``default`` to ``get_latest_metric``.

    It derives from ``ExplainedError``, ``KeyError`` and ``ValueError``, so ``except KeyError`` and ``except
    ValueError`` catch it. The text of a plain ``KeyError`` is the quoted key; the text of this error is the whole
    explanation.

    The four arguments are also attributes; ``str(error)`` shows each argument that is not empty on its own line.

    Args:
        problem: A sentence that names the metric, and the recorded metrics.
        given: The requested name, as a string; not shown if it is empty (the default).
        expected: The recorded metrics; not shown if it is empty (the default).
        do: What to do about the problem; not shown if it is empty (the default).

    Example:
        >>> from pa_core import InMemoryRunHistory, MetricNotFoundError
        >>> history = InMemoryRunHistory()
        >>> history.update_metric("train_loss_epoch", 0.5)
        >>> try:
        ...     history.get_latest_metric("train_loss")
        ... except MetricNotFoundError as error:
        ...     print(error)  # doctest: +ELLIPSIS
        The metric 'train_loss' was never recorded. Recorded were: train_loss_epoch. Correct the name...
    """


def is_explained(error: BaseException) -> TypeGuard[ExplainedError]:
    """Whether an error is an ``ExplainedError``, which has the four parts.

    Args:
        error: Any error.
    """
    return isinstance(error, ExplainedError)


@contextmanager
def as_configuration_error(do: str = "") -> Generator[None]:
    """Convert a ``ValueError`` of another library into the documented ``ConfigurationError``.

    Args:
        do: The advice in terms of this library's arguments; if it is empty, the other library's advice is kept.

    Raises:
        ConfigurationError: The block raised a ``ValueError``.
    """
    try:
        yield
    except ConfigurationError:
        raise
    except ValueError as error:
        problem, *parts = error.args
        raise (ConfigurationError(problem, do=do) if do else ConfigurationError(problem, *parts)) from None
