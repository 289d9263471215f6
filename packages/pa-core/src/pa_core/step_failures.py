"""Saying in which step of a run, and with which batch, an error was raised."""

from __future__ import annotations

from pa_core.batch_structure import describe_batch
from pa_core.errors import BatchMismatchError, ExplainedError

__all__ = ["name_step"]

_BUILT_IN = {"builtins", "torch"}


def name_step(error: Exception, step: str, batch: object) -> None:
    """Add the step, and the structure of its batch, to an error that is about to leave the step.

    Errors that explain themselves are left alone, and so are exceptions of custom classes.

    Args:
        error: Any exception that the step raised.
        step: The step, such as ``"training step 3 of epoch 1"``.
        batch: What the step was called with.
    """
    if isinstance(error, BatchMismatchError):
        error.name_step(step)
    elif not isinstance(error, ExplainedError) and type(error).__module__ in _BUILT_IN:
        error.add_note(f"Raised in {step}, whose batch is {describe_batch(batch)}.")
