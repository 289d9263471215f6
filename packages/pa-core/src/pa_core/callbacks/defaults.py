"""The callbacks that a trainer has unless others are requested."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pa_core.callbacks.log_metrics import LogMetricsCallback
from pa_core.callbacks.move_modules import MoveModulesToDeviceCallback
from pa_core.callbacks.print_progress import PrintProgressCallback
from pa_core.callbacks.progress_bar import ProgressBarCallback
from pa_core.callbacks.terminate_on_nan import TerminateOnNaNCallback
from pa_core.engine.any_trainer import AnyTrainer, TrainerCallback
from pa_core.user_warnings import warn_user

DEFAULT_CALLBACKS: tuple[type[TrainerCallback[AnyTrainer, Any, Any]], ...] = (
    MoveModulesToDeviceCallback,
    TerminateOnNaNCallback,
    PrintProgressCallback,
    ProgressBarCallback,
    LogMetricsCallback,
)


def get_default_callbacks(progress_bar: bool = True) -> tuple[type[TrainerCallback[AnyTrainer, Any, Any]], ...]:
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
    return tuple(callback for callback in DEFAULT_CALLBACKS if progress_bar or callback is not ProgressBarCallback)


def warn_of_none_by_default(callbacks: Collection[object]) -> None:
    """Warn where callbacks were given that have replaced all of the default ones, as if they were added to them.

    Args:
        callbacks: What a trainer has; without any, or with one of the default ones, nothing is said.
    """
    if callbacks and not any(isinstance(callback, DEFAULT_CALLBACKS) for callback in callbacks):
        warn_user(
            "callbacks=[...] has replaced all default callbacks, which print, and end a run whose loss is NaN. To keep "
            "them, pass callbacks=[*DEFAULT_CALLBACKS, ...]; to do without, name those that you want, such as "
            "TerminateOnNaNCallback."
        )
