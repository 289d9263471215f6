"""The callbacks of a trainer that is created without callbacks."""

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
"""The callback classes of a trainer that is created without ``callbacks``, in the order in which they are called.

They move the trainer's other modules to the device, end a run whose loss is NaN, print a row for each epoch, show the
progress, and add the metrics to the rows. Any list that you pass as ``callbacks`` replaces them, so pass
``callbacks=[*DEFAULT_CALLBACKS, MyCallback()]`` to add to them. ``get_default_callbacks`` leaves out the progress bar.
"""


def get_default_callbacks(progress_bar: bool = True) -> tuple[type[TrainerCallback[AnyTrainer, Any, Any]], ...]:
    """Return the default callback classes, in their order, with or without the progress bar.

    Use it to leave out the progress bar, as in ``callbacks=[*get_default_callbacks(progress_bar=False),
    MyCallback()]``. ``DEFAULT_CALLBACKS`` is the same tuple with the bar.

    Args:
        progress_bar: Whether ``ProgressBarCallback`` is included. The default, True, is what a trainer without
            ``callbacks`` uses.

    Returns:
        A tuple of classes that need no arguments. A trainer creates an instance of each.

    Example:
        >>> from pa_core import get_default_callbacks
        >>> for callback in get_default_callbacks(progress_bar=False):
        ...     print(callback.__name__)
        MoveModulesToDeviceCallback
        TerminateOnNaNCallback
        PrintProgressCallback
        LogMetricsCallback
    """
    return tuple(callback for callback in DEFAULT_CALLBACKS if progress_bar or callback is not ProgressBarCallback)


def warn_of_none_by_default(callbacks: Collection[object]) -> None:
    """Warn if a script's callbacks replaced all default callbacks, perhaps by mistake.

    Args:
        callbacks: The callbacks of a trainer; without callbacks, or with a default callback, there is no warning.
    """
    if callbacks and not any(isinstance(callback, DEFAULT_CALLBACKS) for callback in callbacks):
        warn_user(
            "callbacks=[...] has replaced all default callbacks, which print, and end a run whose loss is NaN. To keep "
            "them, pass callbacks=[*DEFAULT_CALLBACKS, ...]; to do without, name those that you want, for example "
            "TerminateOnNaNCallback."
        )
