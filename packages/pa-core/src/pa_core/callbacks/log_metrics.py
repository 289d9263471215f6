"""Logging the metrics of a run as they are recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typing_extensions import override

from pa_core.any_trainer import AnyTrainer
from pa_core.callbacks.row_display import RowDisplay
from pa_core.tracking.metric_counts import count_metrics
from pa_core.tracking.metric_prefix import INTERMEDIATE_PREFIX
from pa_core.tracking.metric_values import as_number

__all__ = ["LogMetricsCallback"]


class LogMetricsCallback(RowDisplay):
    """Logs the latest value of every metric that was updated since it was logged last, and is a number.

    Metrics with ``train`` in their name are logged when a training epoch ends, all others after an
    evaluation, and those that are updated later still at the end of the epoch. Callbacks that record metrics belong
    before this one: what they record after it at the end of an epoch is logged with the next epoch, or when the run
    ends.

    This class prints metrics as one row for each epoch, once on each machine, in one table with what
    ``PrintProgressCallback`` shows if that is there too. A metric is marked with ``*`` where it is better than in all
    epochs before, unless ``train`` is in its name. What has no room in 80 columns follows on indented lines. An
    evaluation within an epoch has its own row; one by ``evaluate()`` is printed as names and values.

    Derive from it and override ``log_metrics`` to send metrics elsewhere. They are then not on the console, unless
    ``super().log_metrics(...)`` is called too; the losses are, where there is a ``PrintProgressCallback``.

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
    # Of metrics that are still to be logged although the row that they belong to is printed, how many values there are.
    _late: dict[str, int] | None = None

    def log_metrics(self, trainer: AnyTrainer, metrics: dict[str, float]) -> None:
        """Log the latest values; override this to send them to a tracker.

        It is called on every process.

        Args:
            trainer: The trainer.
            metrics: The value of each metric that was updated.
        """
        self._table.add(trainer, metrics)
        if not self._table.is_open:
            self._table.print_pairs(trainer)

    @property
    @override
    def _shows_rows(self) -> bool:
        """Whether metrics are printed, and not only sent elsewhere."""
        return type(self).log_metrics is LogMetricsCallback.log_metrics

    @override
    def on_prepare_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Note that a run begins."""
        super().on_prepare_start(trainer, **kwargs)
        self._logged = self._late = None

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Note what was recorded before this run, which by now is reset or restored."""
        super().on_train_epoch_start(trainer, **kwargs)
        self._pass_over_earlier_runs(trainer)
        self._note_late(trainer, "")

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Note what was recorded before this run, if it only evaluates."""
        self._pass_over_earlier_runs(trainer)
        self._note_late(trainer, INTERMEDIATE_PREFIX)

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Log the metrics of the training."""
        self._log_updated(trainer, [name for name in trainer.run_history.get_metric_names() if "train" in name])

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Log all other metrics."""
        self._log_updated(trainer, [name for name in trainer.run_history.get_metric_names() if "train" not in name])
        super().on_eval_epoch_end(trainer, **kwargs)

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Log what was updated after the metrics had been logged, or without an evaluation."""
        self._log_updated(trainer, trainer.run_history.get_metric_names())
        super().on_training_run_epoch_end(trainer, **kwargs)

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Log what a callback after this one has recorded at the end of the last epoch."""
        self._log_updated(trainer, trainer.run_history.get_metric_names())
        super().on_training_run_end(trainer, **kwargs)

    @override
    def on_evaluation_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Log what was updated after the metrics had been logged."""
        self._log_updated(trainer, trainer.run_history.get_metric_names())
        super().on_evaluation_run_end(trainer, **kwargs)

    def _pass_over_earlier_runs(self, trainer: AnyTrainer) -> None:
        if self._logged is None:
            self._logged = count_metrics(trainer.run_history)

    def _note_late(self, trainer: AnyTrainer, prefix: str) -> None:
        """Note what was recorded after the last row was printed, and has not been logged."""
        logged, counts = self._logged or {}, count_metrics(trainer.run_history)
        late = {name: n for name, n in counts.items() if name.startswith(prefix) and n != logged.get(name, 0)}
        self._late = {**(self._late or {}), **late}

    def _log_updated(self, trainer: AnyTrainer, names: Iterable[str]) -> None:
        history = trainer.run_history
        logged, counts = self._logged or {}, count_metrics(history)
        updated = [name for name in names if counts[name] != logged.get(name, 0)]
        if updated:
            self._logged = {**logged, **{name: counts[name] for name in updated}}
            latest = {name: as_number(history.get_latest_metric(name)) for name in updated}
            numbers = {name: number for name, number in latest.items() if number is not None}
            if numbers:
                late = [name for name in numbers if counts[name] == (self._late or {}).get(name)]
                self._table.add(trainer, {}, late=late)
                self.log_metrics(trainer, numbers)
