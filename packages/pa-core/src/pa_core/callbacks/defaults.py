"""The callbacks that a trainer has unless others are asked for."""

from __future__ import annotations

from typing import Any

from pa_core.any_trainer import AnyTrainer
from pa_core.callbacks.log_metrics import LogMetricsCallback
from pa_core.callbacks.move_modules import MoveModulesToDeviceCallback
from pa_core.callbacks.print_progress import PrintProgressCallback
from pa_core.callbacks.progress_bar import ProgressBarCallback
from pa_core.callbacks.terminate_on_nan import TerminateOnNaNCallback
from pa_core.events import TrainerCallback

__all__ = ["DEFAULT_CALLBACKS", "get_default_callbacks"]

DEFAULT_CALLBACKS: tuple[type[TrainerCallback[AnyTrainer, Any, Any]], ...] = (
    MoveModulesToDeviceCallback,
    TerminateOnNaNCallback,
    PrintProgressCallback,
    ProgressBarCallback,
    LogMetricsCallback,
)


def get_default_callbacks(
    progress_bar: bool = True,
) -> tuple[type[TrainerCallback[AnyTrainer, Any, Any]], ...]:
    """Return the default callbacks, in their order.

    Args:
        progress_bar: Whether ``ProgressBarCallback`` is among them.

    Example:
        >>> for callback in get_default_callbacks(progress_bar=False):
        ...     print(callback.__name__)
        MoveModulesToDeviceCallback
        TerminateOnNaNCallback
        PrintProgressCallback
        LogMetricsCallback
    """
    if progress_bar:
        return DEFAULT_CALLBACKS
    return tuple(callback for callback in DEFAULT_CALLBACKS if callback is not ProgressBarCallback)
