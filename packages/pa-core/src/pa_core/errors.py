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
    """An argument has a value that cannot work, for example a negative number of epochs.

    Example:
        >>> raise ConfigurationError("num_epochs must be a whole number >= 1, got -1.")
        Traceback (most recent call last):
        ...
        pa_core.errors.ConfigurationError: num_epochs must be a whole number >= 1, got -1.
    """


class ArgumentTypeError(ExplainedError, TypeError):
    """An argument has the wrong type, for example a class instead of an instance.

    Example:
        >>> from pa_core import Trainer
        >>> Trainer(None, None, None, callbacks=3)
        Traceback (most recent call last):
        ...
        pa_core.errors.ArgumentTypeError: The model must be a torch.nn.Module, got one of type NoneType.
    """


class UnsupportedConfigurationError(ExplainedError, RuntimeError):
    """Every argument is valid, but the environment or the combination does not support the request.

    For example, a package is not installed, or two trainers of a process use different devices. Its text says what to
    change.

    Example:
        >>> issubclass(UnsupportedConfigurationError, RuntimeError)
        True
    """


class StopTrainingError(Exception):
    """Raised by a callback or a trainer to end a run early; it is not a failure.

    Raise it in any event or hook, on one process or on all. The run still ends through its ordinary events, and
    ``train()`` returns normally. On several processes, the others learn of it with the next update, and all of them
    stop at the same update.

    Example:
        >>> import torch
        >>> from pa_core import AnyTrainer, Trainer, TrainerCallback
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

    It is raised where torch would compute a loss of the wrong pairs without an error. Where torch itself raises an
    error, that error leaves the step, with notes on shapes and dtypes.

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
        """Add the step of the run to the description of the given values; the trainer calls it before the error leaves.

        Args:
            step: The step, for example ``"training step 3 of epoch 1"``.
        """
        self.given: str = f"{self.given}, in {step}"
        self.args: tuple[Any, ...] = (self.problem, self.given, self.expected, self.do)


class BatchOutputError(ExplainedError, TypeError):
    """A training or evaluation step returned the wrong outputs.

    ``train()`` and ``evaluate()`` raise it in the first step. The outputs are a dictionary with the keys ``loss`` (a
    tensor with one element), ``model_outputs`` and ``batch_size``. The loss of a training step needs a graph.

    Example:
        >>> issubclass(BatchOutputError, TypeError)
        True
    """


class OverrideError(ExplainedError, TypeError):
    """A subclass of the trainer has a method that would break the loop, or that is never called, for example a typo.

    The class statement raises it.

    Example:
        >>> issubclass(OverrideError, TypeError)
        True
    """


class NonFiniteLossError(ExplainedError, StopTrainingError, ArithmeticError):
    """The run ended because a loss became NaN or infinite, or because the gradients of fp16 always overflow.

    The run ends like after ``StopTrainingError``, through the ordinary events. Then the error is raised by ``train()``
    or ``evaluate()``, so that the script exits with status 1.

    Example:
        >>> issubclass(NonFiniteLossError, ArithmeticError)
        True
    """


class TrainingPreempted(SystemExit):  # not an error: it ends a script like SystemExit
    """The run was preempted: a training state is saved, and the process ends.

    It is a ``SystemExit``, so ``except Exception`` lets it pass, and a script that does not catch it ends without a
    traceback and with its status: 75, which means a temporary failure, after which a retry can succeed (``EX_TEMPFAIL``
    of ``sysexits.h``).

    Attributes:
        STATUS: The exit status.

    Example:
        >>> TrainingPreempted().code
        75
    """

    STATUS = 75

    def __init__(self) -> None:
        super().__init__(self.STATUS)


class SmallerBatchNeeded(SystemExit):  # not an error: it ends a script like SystemExit
    """A batch of ``per_device_batch_size="fit"`` did not fit into memory: a note is written, and the process ends.

    Start the script again with ``resume_from``: the run continues with smaller batches, and the same updates. It is a
    ``SystemExit`` with status 75, as ``TrainingPreempted`` is.

    Attributes:
        STATUS: The exit status.

    Example:
        >>> SmallerBatchNeeded().code
        75
    """

    STATUS = TrainingPreempted.STATUS

    def __init__(self) -> None:
        super().__init__(self.STATUS)


class MetricNotFoundError(ExplainedError, KeyError, ValueError):
    """A requested metric was never recorded.

    It is caught as a ``KeyError`` and as a ``ValueError``. Unlike a plain ``KeyError``, whose text is the quoted key,
    its text is the whole explanation.

    Example:
        >>> issubclass(MetricNotFoundError, KeyError), issubclass(MetricNotFoundError, ValueError)
        (True, True)
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
