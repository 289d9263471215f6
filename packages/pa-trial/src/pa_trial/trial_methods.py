"""The overridden methods of a trial: the method that validates it, and its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pa_trial.errors import ArgumentTypeError, InvalidExperimentException
from pa_trial.trial import PyTorchTrial
from pa_trial.types import Metrics


def check_trial(trial: object) -> None:
    """Raise an error for anything that is not a trial, or that overrides no method of validation, or both.

    Args:
        trial: The object that was passed to the trainer.

    Raises:
        ArgumentTypeError: It is not an instance of ``PyTorchTrial``.
        InvalidExperimentException: It overrides none or both of ``evaluate_batch`` and ``evaluate_full_dataset``.
    """
    if not isinstance(trial, PyTorchTrial):
        do = "Pass an instance of a subclass of PyTorchTrial: Trainer(MyTrial(context), context)."
        raise ArgumentTypeError(f"This is not a trial: {trial!r}.", do=do)
    checked: PyTorchTrial[Any] = trial  # pyright: ignore[reportUnknownVariableType]  # the type of its batches is its own
    by_batch = evaluates_batches(checked)
    by_dataset = _overrides(checked, PyTorchTrial.evaluate_full_dataset)
    if by_batch is by_dataset:
        raise InvalidExperimentException(
            "A trial must override exactly one of evaluate_batch and evaluate_full_dataset.",
            given=f"{type(checked).__name__} overrides {'both' if by_batch else 'neither'} of evaluate_batch and "
            "evaluate_full_dataset",
            do="Remove one of them." if by_batch else "Override evaluate_batch.",
        )


def evaluates_batches(trial: PyTorchTrial[Any]) -> bool:
    """Whether a trial overrides ``evaluate_batch``.

    Args:
        trial: The trial.
    """
    return _overrides(trial, PyTorchTrial.evaluate_batch)


def batch_evaluation(trial: PyTorchTrial[Any]) -> Callable[[Any, int], Metrics]:
    """Return a function of a batch and its index that calls ``evaluate_batch``, with the index if it is a parameter.

    Args:
        trial: The trial.
    """
    evaluate: Callable[..., Metrics] = trial.evaluate_batch
    parameters = inspect.signature(evaluate).parameters
    takes_index = "batch_idx" in parameters or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )
    if takes_index:
        return lambda batch, batch_idx: evaluate(batch=batch, batch_idx=batch_idx)
    return lambda batch, _batch_idx: evaluate(batch=batch)


def _overrides(trial: PyTorchTrial[Any], method: Callable[..., object]) -> bool:
    """Whether a trial has a different function, or its own callable, under the name of a method of the base class."""
    own = getattr(trial, method.__name__)
    return getattr(own, "__func__", own) is not method
