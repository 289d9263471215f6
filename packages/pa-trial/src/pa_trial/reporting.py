"""Reports of a trial on the chief: lines of the logger, and curves for TensorBoard."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from torch import Tensor

from pa_trial.metric_values import number_of
from pa_trial.progress import TrialProgress
from pa_trial.tensorboard import TensorBoard, require_tensorboard
from pa_trial.types import Metrics, rebuilt

_LOGGER = logging.getLogger("pa_trial")


class Reporter:
    """Reports the metrics of workloads and validations.

    Each report is a line of the logger "pa_trial", at the level INFO. Curves are written for TensorBoard if it has a
    path, or the trial requested the writer.

    Args:
        tensorboard: Writes the curves. Processes other than the chief report nothing.
        logs_to_tensorboard: Called before each report; returns whether metrics are written for TensorBoard.
    """

    def __init__(self, tensorboard: TensorBoard, logs_to_tensorboard: Callable[[], bool] = lambda: True) -> None:
        self._tensorboard = tensorboard
        self._is_chief = tensorboard.rank == 0
        self._is_enabled = logs_to_tensorboard

    def begin(self, progress: TrialProgress) -> None:
        """Prepare for the training that begins or resumes; all processes call this.

        Curves that an interrupted training drew beyond the checkpoint are hidden, as they are drawn again.

        Args:
            progress: The counters of the training.

        Raises:
            UnsupportedConfigurationError: A path for TensorBoard is given, but TensorBoard is not installed.
        """
        if self._is_enabled() and self._tensorboard.path is not None:
            require_tensorboard()
        if progress.initial_batch > 0:
            # Validations have points at the step of the checkpoint, which stay. The point of the first batch after it
            # has the same step, so it stays too, next to the equal point that is drawn again.
            self._tensorboard.continue_from(progress.initial_batch + 1)

    def beginning(self, progress: TrialProgress, *, is_complete: bool) -> None:
        """Report the batch at which a resumed training continues.

        Args:
            progress: The counters of the training.
            is_complete: Whether it has reached its length.
        """
        if not self._is_chief:
            return
        if is_complete:
            _LOGGER.info("complete after %d batches, nothing left to train", progress.batches_trained)
        elif progress.batches_trained:
            _LOGGER.info("continuing after %d batches", progress.batches_trained)

    def training(
        self,
        avg_metrics: Metrics,
        batch_metrics: Sequence[Metrics],
        progress: TrialProgress,
        *,
        num_records: int = 0,
        seconds: float = 0.0,
    ) -> None:
        """Report a training workload.

        Args:
            avg_metrics: Its averages.
            batch_metrics: The metrics of each batch.
            progress: The counters after the workload.
            num_records: The number of records that all processes trained on; 0 if it is not known.
            seconds: Its duration.
        """
        if not self._is_chief:
            return
        speed = f", {num_records / seconds:.1f} records per second" if num_records and seconds > 0 else ""
        _LOGGER.info("training, %d batches: %s%s", progress.batches_trained, _readable(avg_metrics), speed)
        if not self._writes_curves():
            return
        first = progress.batches_trained - len(batch_metrics)
        drawn: set[str] = set()
        for index, metrics in enumerate(batch_metrics, start=first):
            drawn |= self._add_points(metrics, index)
        others = {name: value for name, value in avg_metrics.items() if name not in drawn}
        self._add_points(others, progress.batches_trained)
        self._tensorboard.flush()

    def validation(self, metrics: Metrics, progress: TrialProgress) -> None:
        """Report a validation.

        Args:
            metrics: Its metrics.
            progress: The counters of the training.
        """
        if not self._is_chief:
            return
        _LOGGER.info("validation, %d batches: %s", progress.batches_trained, _readable(metrics))
        if self._writes_curves():
            named = {name if str(name).startswith("val") else f"val_{name}": value for name, value in metrics.items()}
            self._add_points(named, progress.batches_trained)
            self._tensorboard.flush()

    def progress(self, fraction: float) -> None:
        """Report the completed fraction of the training.

        Args:
            fraction: From 0 to 1.
        """
        if self._is_chief:
            _LOGGER.info("progress: %.1f %%", 100 * fraction)

    def _writes_curves(self) -> bool:
        return self._is_enabled() and (self._tensorboard.path is not None or self._tensorboard.has_writer)

    def _add_points(self, metrics: Metrics, step: int) -> set[str]:
        """Add a point for each metric that is a number; return their names."""
        points = {name: number for name, value in metrics.items() if (number := number_of(value)) is not None}
        if points:
            self._tensorboard.add_scalars({f"Determined/{name}": number for name, number in points.items()}, step)
        return set(points)


def _readable(value: Any) -> Any:
    """Return a value with floats of six significant digits, and lists in place of arrays."""
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        value = cast("Any", value).tolist()
    return float(f"{value:.6g}") if isinstance(value, float) else rebuilt(value, _readable)
