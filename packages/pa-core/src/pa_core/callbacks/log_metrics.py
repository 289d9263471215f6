"""Logging the metrics of a run as they are recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typing_extensions import override

from pa_core.any_trainer import AnyTrainer
from pa_core.events import TrainerCallback
from pa_core.tracking import RunHistory
from pa_core.tracking.metric_values import as_number

__all__ = ["LogMetricsCallback"]


class LogMetricsCallback(TrainerCallback):
    """Logs the latest value of every metric that was updated since it was logged last, and is a number.

    Metrics with ``train`` in their name are logged when a training epoch ends, all others after an
    evaluation, and those that are updated later still at the end of the epoch. Callbacks that record metrics belong
    before this one: what they record after it at the end of an epoch is logged with the next epoch, or when the run
    ends. This class prints metrics, once on each machine. Derive from it and override ``log_metrics`` to send them
    elsewhere.

    Example:
        >>> from pa_core import AnyTrainer, LogMetricsCallback
        >>> class LogToList(LogMetricsCallback):
        ...     def __init__(self) -> None:
        ...         self.logged: list[dict[str, float]] = []
        ...     def log_metrics(self, trainer: AnyTrainer, metrics: dict[str, float]) -> None:
        ...         if trainer.run_config.is_world_process_zero:
        ...             self.logged.append(metrics)
    """

    # How many values of each metric were there when it was logged last; None before the first epoch of a run.
    # It is not set in __init__, since loggers derived from this class need not call that.
    _logged: dict[str, int] | None = None

    def log_metrics(self, trainer: AnyTrainer, metrics: dict[str, float]) -> None:
        """Log the latest values; override this to send them to a tracker.

        It is called on every process.

        Args:
            trainer: The trainer.
            metrics: The value of each metric that was updated.
        """
        # Without flush, lines of the progress, which are written at once, would overtake this one in a log file.
        trainer.print("\n".join(f"{name}: {value:.6g}" for name, value in metrics.items()), flush=True)

    @override
    def on_prepare_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Note that a run begins."""
        self._logged = None

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Note what was recorded before this run, which by now is reset or restored."""
        self._pass_over_earlier_runs(trainer)

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Note what was recorded before this run, if it only evaluates."""
        self._pass_over_earlier_runs(trainer)

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Log the metrics of the training."""
        self._log_updated(trainer, [name for name in trainer.run_history.get_metric_names() if "train" in name])

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Log all other metrics."""
        self._log_updated(trainer, [name for name in trainer.run_history.get_metric_names() if "train" not in name])

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Log what was updated after the metrics had been logged, or without an evaluation."""
        self._log_updated(trainer, trainer.run_history.get_metric_names())

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Log what a callback after this one has recorded at the end of the last epoch."""
        self._log_updated(trainer, trainer.run_history.get_metric_names())

    @override
    def on_evaluation_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Log what was updated after the metrics had been logged."""
        self._log_updated(trainer, trainer.run_history.get_metric_names())

    def _pass_over_earlier_runs(self, trainer: AnyTrainer) -> None:
        if self._logged is None:
            self._logged = _numbers_of_values(trainer.run_history)

    def _log_updated(self, trainer: AnyTrainer, names: Iterable[str]) -> None:
        history = trainer.run_history
        logged, counts = self._logged or {}, _numbers_of_values(history)
        updated = [name for name in names if counts[name] != logged.get(name, 0)]
        if updated:
            self._logged = {**logged, **{name: counts[name] for name in updated}}
            latest = {name: as_number(history.get_latest_metric(name)) for name in updated}
            numbers = {name: number for name, number in latest.items() if number is not None}
            if numbers:
                self.log_metrics(trainer, numbers)


def _numbers_of_values(history: RunHistory) -> dict[str, int]:
    return {name: history.count_metric_values(name) for name in history.get_metric_names()}
