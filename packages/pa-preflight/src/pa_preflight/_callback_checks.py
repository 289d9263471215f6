"""Settings of callbacks that never do what they are for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pa_core import SaveTrainingStateCallback, StepBasedEvaluationCallback
from pa_preflight._findings import Finding, noticed
from pa_preflight._planned_run import PlannedRun

_INITIAL_LEFT, _NO_AVERAGE, _TENTH, _FEWEST = 0.3, 0.3, 0.1, 10


def check_callbacks(callbacks: Sequence[Any], planned: PlannedRun, first_loss: float | None) -> Iterator[Finding]:
    """Yield what is wrong with the settings of callbacks.

    Args:
        callbacks: The callbacks of the run, which are not called.
        planned: What the run is going to do.
        first_loss: The loss of the first batch; None if it is not known.
    """
    for one in callbacks:
        if _is(one, "EarlyStoppingCallback"):
            yield from _check_stopping(one, planned, first_loss)
        elif _is(one, "ModelEmaCallback"):
            yield from _check_average(one, planned)
        elif isinstance(one, StepBasedEvaluationCallback):
            yield from _never(one, "eval_every_n_steps", one.eval_every_n_steps, planned.updates, "updates")
        elif isinstance(one, SaveTrainingStateCallback) and not one.save_at_end:
            yield from _check_saving(one, planned)
    yield from _check_paths(callbacks)


def _is(callback: object, name: str) -> bool:
    """Whether it is a callback of pa-callbacks-extra, which need not be installed."""
    return any(one.__name__ == name and one.__module__.startswith("pa_") for one in type(callback).__mro__)


def _check_stopping(callback: Any, planned: PlannedRun, first_loss: float | None) -> Iterator[Finding]:
    threshold, watched = float(callback.early_stopping_threshold), str(callback.watch_metric)
    is_loss = "loss" in watched and not callback.greater_is_better
    if is_loss and first_loss is not None and 0 < _TENTH * first_loss < threshold:
        yield noticed(
            "callback-settings",
            f"early_stopping_threshold={threshold:g} asks {watched} to improve by that much, and the loss of the first "
            f"batch is {first_loss:.3g} in all: the run ends after early_stopping_patience="
            f"{callback.early_stopping_patience} epochs.",
            "Pass a threshold that is small next to the loss, such as a hundredth of it, or 0.",
        )
    elif callback.greater_is_better and threshold >= 1 and not is_loss:
        yield noticed(
            "callback-settings",
            f"early_stopping_threshold={threshold:g} asks {watched} to improve by that much, which a share from 0 to 1 "
            "cannot.",
            "Pass a small threshold, such as 0.001.",
        )
    if planned.epochs > 1 and callback.early_stopping_patience >= planned.epochs:
        yield noticed(
            "callback-settings",
            f"early_stopping_patience={callback.early_stopping_patience}, and the run has {planned.epochs} epochs: it "
            "never stops early.",
            "Pass a smaller patience, or leave the callback out.",
        )


def _check_average(callback: Any, planned: PlannedRun) -> Iterator[Finding]:
    decay, updates = float(callback.decay), planned.updates
    if updates < _FEWEST or not isinstance(callback.model_ema, type):  # others may warm up
        return
    left = decay**updates
    if left > _INITIAL_LEFT:
        yield noticed(
            "callback-settings",
            f"ModelEmaCallback keeps {100 * decay:g} % of the average in each update: after all {updates} updates of "
            f"the run, {100 * left:.0f} % of it are still the untrained weights.",
            f"Pass a smaller decay, such as {max(0.5, 1 - 20 / updates):.3g}, or a ModelEma that warms up.",
        )
    elif decay < _NO_AVERAGE:
        yield noticed(
            "callback-settings",
            f"ModelEmaCallback keeps {100 * decay:g} % of the average in each update: it is the newest weights.",
            "Pass the share that the average keeps, such as 0.99.",
        )


def _never(callback: object, name: str, every: int, number: int, what: str) -> Iterator[Finding]:
    if 0 < number < every:
        yield noticed(
            "callback-settings",
            f"{type(callback).__name__} has {name}={every}, and the run has {number} {what}: it never acts.",
            f"Pass a smaller {name}, or leave the callback out.",
        )


def _check_saving(callback: SaveTrainingStateCallback, planned: PlannedRun) -> Iterator[Finding]:
    by_epoch, by_step = callback.save_every_n_epochs, callback.save_every_n_steps
    if callback.save_every_n_seconds is not None:
        return
    if by_epoch is not None and by_step is None:
        yield from _never(callback, "save_every_n_epochs", by_epoch, planned.epochs, "epochs")
    elif by_step is not None and by_epoch is None:
        yield from _never(callback, "save_every_n_steps", by_step, planned.updates, "updates")


def _check_paths(callbacks: Iterable[Any]) -> Iterator[Finding]:
    paths: dict[Path, object] = {}
    for one in callbacks:
        given = getattr(one, "save_path", None)
        if not isinstance(given, (str, Path)):
            continue
        path = Path(given).absolute()
        if path in paths:
            names = " and ".join(type(each).__name__ for each in (paths[path], one))
            yield noticed(
                "callback-settings",
                f"{names} both save to {given}, and replace what the other has saved.",
                "Give each its own save_path.",
            )
        paths[path] = one
