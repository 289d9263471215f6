"""Errors that tell what was given, what was expected and what to do.

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
    """An argument has a value that cannot work, such as a negative number of epochs.

    Example:
        >>> raise ConfigurationError("num_epochs must be a whole number >= 1, got -1.")
        Traceback (most recent call last):
        ...
        pa_core.errors.ConfigurationError: num_epochs must be a whole number >= 1, got -1.
    """


class ArgumentTypeError(ExplainedError, TypeError):
    """An argument is another kind of thing than the one that is expected, such as a class instead of an instance.

    Example:
        >>> from pa_core import Trainer
        >>> Trainer(None, None, None, callbacks=3)
        Traceback (most recent call last):
        ...
        pa_core.errors.ArgumentTypeError: The model must be a torch.nn.Module, got one of type NoneType.
    """


class UnsupportedConfigurationError(ExplainedError, RuntimeError):
    """Every argument is valid, but this environment or combination cannot do what was requested.

    Example:
        >>> issubclass(UnsupportedConfigurationError, RuntimeError)
        True
    """


class StopTrainingError(Exception):
    """Raised by a callback or a trainer to end a run early; it is a request, not a failure.

    The run still ends through its ordinary events, and ``train()`` returns normally.

    Example:
        >>> def stop_below(loss: float, target: float) -> None:
        ...     if loss < target:
        ...         raise StopTrainingError(f"the loss {loss} is below {target}")
        >>> stop_below(0.1, target=0.2)
        Traceback (most recent call last):
        ...
        pa_core.errors.StopTrainingError: the loss 0.1 is below 0.2
    """


class BatchMismatchError(ExplainedError, RuntimeError, ValueError, TypeError, IndexError):
    """The samples, the model and the loss function of a default step do not fit together, and torch would not say so.

    It is raised where torch would compute the loss of other pairs than those that were meant. Where torch itself raises
    an error, that one leaves the step, with notes on shapes and dtypes.

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
        """Add to what was given in which step of the run it was.

        Args:
            step: The step, such as ``"training step 3 of epoch 1"``.
        """
        self.given: str = f"{self.given}, in {step}"
        self.args: tuple[Any, ...] = (self.problem, self.given, self.expected, self.do)


class BatchOutputError(ExplainedError, TypeError):
    """What a training or evaluation step returned is not a dictionary with a scalar loss and its companions.

    Example:
        >>> issubclass(BatchOutputError, TypeError)
        True
    """


class OverrideError(ExplainedError, TypeError):
    """A subclass of the trainer has a method that would break the loop, or that the loop would never call.

    It is raised where the class is defined.

    Example:
        >>> issubclass(OverrideError, TypeError)
        True
    """


class NonFiniteLossError(ExplainedError, StopTrainingError, ArithmeticError):
    """A loss became NaN or infinite, and the run ends because of it; or the gradients of fp16 always overflow.

    It ends the run as ``StopTrainingError`` does, through the ordinary events, and is then raised by
    ``train()`` or ``evaluate()``, so that the exit status of a script tells.

    Example:
        >>> issubclass(NonFiniteLossError, ArithmeticError)
        True
    """


class TrainingPreempted(SystemExit):  # not an error: a script ends by it as by SystemExit
    """The machine is needed for something else: a training state was saved, and the process ends.

    It is a ``SystemExit``, so ``except Exception`` lets it pass, and a script that does not catch it ends without a
    traceback and with its status: 75, which stands for a temporary failure after which to try again (``EX_TEMPFAIL`` of
    ``sysexits.h``).

    Attributes:
        STATUS: The exit status.

    Example:
        >>> TrainingPreempted().code
        75
    """

    STATUS = 75

    def __init__(self) -> None:
        super().__init__(self.STATUS)


class SmallerBatchNeeded(SystemExit):  # no error: a script ends by it as by SystemExit
    """With ``per_device_batch_size="fit"``, the memory did not suffice: a note was written, and the process ends.

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
    """Whether an error is one of ours, which has the four parts of an ``ExplainedError``.

    Args:
        error: Any error.
    """
    return isinstance(error, ExplainedError)


@contextmanager
def as_configuration_error(do: str = "") -> Generator[None]:
    """Raise what a library beneath says of an argument as the error that is documented here.

    Args:
        do: What to do, in the words of the arguments here; empty for what the library advises.

    Raises:
        ConfigurationError: The block has raised a ``ValueError``.
    """
    try:
        yield
    except ConfigurationError:
        raise
    except ValueError as error:
        problem, *parts = error.args
        raise (ConfigurationError(problem, do=do) if do else ConfigurationError(problem, *parts)) from None
