"""Errors with four parts: the problem, the given value, the expected value and what to do.

Each error also derives from the built-in exception a Python user would catch for the same mistake, so
``except ValueError`` keeps working:

    >>> issubclass(ConfigurationError, ValueError), issubclass(MetricNotFoundError, KeyError)
    (True, True)
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
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
    """An argument has a value that cannot work, or a call comes at a moment at which it cannot work.

    Examples are a negative number of epochs, an unknown metric name, and ``Run.backward`` outside of the loop. It is
    the most common error of this library: constructors, ``train()``, ``evaluate()``, ``predict()``, ``Run`` and most
    callbacks raise it before they change anything. Correct the call as the message says.

    It derives from ``ExplainedError`` and ``ValueError``, so ``except ValueError`` catches it. An argument of the wrong
    type raises ``ArgumentTypeError`` instead, and a missing package or an unsupported combination of valid arguments
    ``UnsupportedConfigurationError``.

    The four arguments are also attributes; ``str(error)`` shows each of them that is not empty on its line.

    Args:
        problem: A sentence that names the problem; it is enough if it contains the given and the expected value.
        given: The found value, as text; an empty text, the default, is not shown.
        expected: A description of a correct value; not shown if it is empty, the default.
        do: The action that solves the problem; not shown if it is empty, the default.

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
    or a dataset that cannot work raises ``ConfigurationError`` instead, even if it is, for example, a text.

    It derives from ``ExplainedError`` and ``TypeError``, so ``except TypeError`` catches it.

    The four arguments are also attributes; ``str(error)`` shows each of them that is not empty on its line.

    Args:
        problem: A sentence that names the problem; it is enough if it contains the given and the expected type.
        given: The found value, as text; an empty text, the default, is not shown.
        expected: A description of a correct value; not shown if it is empty, the default.
        do: The action that solves the problem; not shown if it is empty, the default.

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
    """Every argument is valid, but the environment or the combination does not support the request.

    Causes are a package that is not installed, two trainers in a process that use different devices or precisions, a
    feature that a sharded or a reproducible run does not have, and processes that cannot be connected. Constructors,
    ``train()``, ``predict()``, ``connect()`` and some callbacks raise it. The message names the way out: install the
    package, leave out an argument, or use a separate process.

    It derives from ``ExplainedError`` and ``RuntimeError``, so ``except RuntimeError`` catches it, and
    ``except ValueError`` does not.

    The four arguments are also attributes; ``str(error)`` shows each of them that is not empty on its line.

    Args:
        problem: A sentence that names the problem.
        given: The found value, as text; an empty text, the default, is not shown.
        expected: A description of a supported value; not shown if it is empty, the default.
        do: The action that solves the problem; not shown if it is empty, the default.

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
    """Raise it in a callback or a hook to end a run early, for example because the model is good enough.

    Raise it in any event of a callback, in a hook or a step of your trainer, or in the loop of a ``Run``, on one
    process or on all. The other callbacks are still called for the same event. ``on_stop_training_error`` and
    ``on_training_run_end`` follow, and ``train()`` returns normally: you need not catch the error, and it is not a
    failure. On several processes, the others learn about it with the next update, and all of them stop at the same
    update.

    In the step of a sharded model (whose parameters are split over the processes), it raises
    ``UnsupportedConfigurationError``, because the other processes wait for this process. Raise it in a callback
    there, and also with ``ConvertSyncBatchNormCallback``, whose layers wait for each other. In the loop of a ``Run``,
    only raise it on all processes; ``Run.request_stop`` works on a single process.

    It derives from ``Exception`` alone. It takes any arguments, like ``Exception``; pass the reason as a text, which
    ``PrintProgressCallback`` prints. ``NonFiniteLossError`` derives from it, and is raised by ``train()``.

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

    ``train()``, ``evaluate()`` and ``predict()`` raise it if the trainer's own steps are used, so
    ``calculate_train_batch_loss``, ``calculate_eval_batch_loss`` or ``predict_batch`` is not overridden. It is raised
    where torch would compute a loss of the wrong pairs without an error, for example by broadcasting, and where the
    model takes other arguments than the batch has. Where torch itself raises an error, that error leaves the step, with
    notes on shapes and dtypes. Reshape or convert the targets as the message says, or override the step.

    It derives from ``ExplainedError``, and is also caught as a ``RuntimeError``, a ``ValueError``, a ``TypeError`` or
    an ``IndexError``, because torch raises any of these for such batches.

    The four arguments are also attributes; ``str(error)`` shows each of them that is not empty on its line.

    Args:
        problem: A sentence that names the problem.
        given: The shapes and dtypes of the batch, as text; an empty text, the default, is not shown.
        expected: The shapes or dtypes that fit; not shown if it is empty, the default.
        do: The action that solves the problem; not shown if it is empty, the default.

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

        The trainer calls it before the error leaves the step; you need not call it. A custom loop that calls a
        trainer's step itself can call it once in its ``except`` block.

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
    """A step, ``predict_batch`` or a call of ``backward`` gave values that the run cannot use.

    ``train()`` and ``evaluate()`` raise it, usually in the first step, if ``calculate_train_batch_loss`` or
    ``calculate_eval_batch_loss`` does not return a dictionary with the keys ``loss`` (a tensor with one element, in
    training with a graph), ``model_outputs`` and ``batch_size`` (a whole number). ``Run.backward`` and ``Run.log``
    raise it for a ``num_items`` that is not a whole number. ``predict(write=...)`` raises it if the predictions are not
    rows that fit the file. Correct the returned values as the message says.

    It derives from ``ExplainedError`` and ``TypeError``, so ``except TypeError`` catches it.

    The four arguments are also attributes; ``str(error)`` shows each of them that is not empty on its line.

    Args:
        problem: A sentence that names the problem and the method.
        given: The returned value, as text; an empty text, the default, is not shown.
        expected: A description of a correct value; not shown if it is empty, the default.
        do: The action that solves the problem; not shown if it is empty, the default.

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
    a typo, is reported by a ``UserWarning`` instead.

    It derives from ``ExplainedError`` and ``TypeError``, so ``except TypeError`` around the class statement catches it.

    The four arguments are also attributes; ``str(error)`` shows each of them that is not empty on its line.

    Args:
        problem: A sentence that names the class and the method, and says what to do.
        given: The found value, as text; an empty text, the default, is not shown.
        expected: A description of a correct value; not shown if it is empty, the default.
        do: The action that solves the problem; not shown if it is empty, the default.

    Example:
        A private method of the trainer would be replaced::

            try:
                class MyTrainer(Trainer):
                    def _run_epoch(self, epoch): ...
            except OverrideError as error:
                print(error)  # MyTrainer._run_epoch would replace a private part of the trainer's loop. Rename ...
    """


class NonFiniteLossError(ExplainedError, StopTrainingError, ArithmeticError):
    """The run ended because a loss became NaN or infinite, or because the gradients of fp16 always overflow.

    ``train()``, ``evaluate()`` and the ``with`` block of a ``Run`` raise it, so that the script exits with status 1. It
    is raised if ``TerminateOnNaNCallback``, a default callback of ``Trainer``, finds such a loss; with
    ``mixed_precision="fp16"`` also without the callback, if the gradients overflow at every scale. The run ends like
    after ``StopTrainingError``, with ``on_stop_training_error`` and ``on_training_run_end``, before the error is
    raised. Lower the learning rate, clip the gradients with ``gradient_clip_norm``, or check the batch that the message
    names.

    It derives from ``ExplainedError``, ``StopTrainingError`` and ``ArithmeticError``, so ``except ArithmeticError``
    catches it, for example in a search over learning rates.

    The four arguments are also attributes; ``str(error)`` shows each of them that is not empty on its line.

    Args:
        problem: A sentence that names the loss.
        given: Its value and its batch, as text; an empty text, the default, is not shown.
        expected: A description of a correct value; not shown if it is empty, the default.
        do: The action that solves the problem; not shown if it is empty, the default.

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
    """The run was interrupted because its machine will be taken away: a training state is saved, and the script ends.

    ``train()`` and the loops of a ``Run`` raise it on every process, after a preemption was requested: by a signal that
    ``SaveTrainingStateCallback`` watches, for example the SIGTERM of a scheduler, or by
    ``trainer.request_preemption()``. Without that callback no state is saved. Leave it uncaught: the script then ends
    without a traceback and with exit status 75 (``EX_TEMPFAIL`` of ``sysexits.h``, a temporary failure), by which a
    scheduler recognizes that it can start the same script again; ``train(resume_from=...)`` then continues the run.

    It derives from ``SystemExit``, so neither ``except Exception`` nor ``except ValueError`` catches it, and
    ``finally`` blocks run. It has no arguments. Catch it by its name to clean up, and raise it again.

    Attributes:
        STATUS: The exit status, 75; ``code`` of an instance is the same.

    Example:
        >>> import torch
        >>> from pa_core import AnyTrainer, Trainer, TrainerCallback, TrainingPreempted
        >>> from pa_core.testing import make_regression
        >>> class Preempt(TrainerCallback):
        ...     def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: object) -> None:
        ...         trainer.request_preemption()
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[Preempt])
        >>> try:
        ...     trainer.train(make_regression(64), num_epochs=1)
        ... except TrainingPreempted as preempted:
        ...     print(f"exit status {preempted.code} after update {trainer.num_updates_completed}")
        exit status 75 after update 1
    """

    STATUS = 75

    def __init__(self) -> None:
        super().__init__(self.STATUS)


class SmallerBatchNeeded(SystemExit):  # not an error: it ends a script like SystemExit
    """A batch of ``per_device_batch_size="fit"`` did not fit into memory; the script ends, to be started again.

    ``train()`` and the block of a ``Run`` raise it if an accelerator runs out of memory after the trial updates that
    chose the batch size. Before that, they write a note with half the batch size to the folder of
    ``SaveTrainingStateCallback``, and a line to stderr; without such a folder, the memory error of torch is raised
    instead, with advice. Leave it uncaught, so that the script ends with status 75, and start the script again with
    ``resume_from``: the run continues with smaller batches, and with the same updates.

    It derives from ``SystemExit``, so ``except Exception`` does not catch it. It has no arguments. The memory error of
    torch is its ``__cause__``.

    Attributes:
        STATUS: The exit status, 75, which ``TrainingPreempted`` has too; ``code`` of an instance is the same.

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

    It derives from ``ExplainedError``, ``KeyError`` and ``ValueError``, so ``except KeyError`` and
    ``except ValueError`` catch it. Unlike a plain ``KeyError``, whose text is the quoted key, its text is the whole
    explanation.

    The four arguments are also attributes; ``str(error)`` shows each of them that is not empty on its line.

    Args:
        problem: A sentence that names the metric, and the recorded metrics.
        given: The requested name, as text; an empty text, the default, is not shown.
        expected: The recorded metrics; not shown if it is empty, the default.
        do: The action that solves the problem; not shown if it is empty, the default.

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
    """Convert an error of a library into the documented ``ConfigurationError``.

    Args:
        do: The advice in terms of the arguments here; empty for the advice of the library.

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
