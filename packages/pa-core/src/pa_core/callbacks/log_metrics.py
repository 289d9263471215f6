"""Logging the metrics of a run as they are recorded, and the table whose rows show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from typing_extensions import override

from pa_core.any_trainer import AnyTrainer, TrainerCallback
from pa_core.callbacks.best_metric import BestMetric, JudgesMetric, direction_in_name
from pa_core.callbacks.epoch_rows import EpochRows, format_pairs, is_loss
from pa_core.tracking.run_history import INTERMEDIATE_PREFIX, UpdatedMetrics, values_with_epochs


class LogMetricsCallback(TrainerCallback):
    """Logs the latest value of every metric that was updated since it was logged last, and is a number.

    Metrics with ``train`` in their name are logged when a training epoch ends, all others after an
    evaluation, and those that are updated later still at the end of the epoch. Callbacks that record metrics belong
    before this one: what they record after it at the end of an epoch is logged with the next epoch, or when the run
    ends.

    Where ``PrintProgressCallback`` prints a row for each epoch, this class adds the metrics to it; elsewhere it prints
    names and values, once on each machine.

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

    joins_sanity_evaluation = False
    # None before the first epoch of a run. Not set in __init__, which loggers derived from this class need not call.
    _updated: UpdatedMetrics | None = None

    def log_metrics(self, trainer: AnyTrainer, metrics: dict[str, float]) -> None:
        """Log the latest values; override this to send them to a tracker.

        It is called on every process.

        Args:
            trainer: The trainer.
            metrics: The value of each metric that was updated.
        """
        display = next((one for one in trainer.callback_handler.callbacks if isinstance(one, RowDisplay)), None)
        if display is None:
            trainer.print("\n".join(format_pairs(metrics, indent=2)), flush=True)
        elif not self._only_prints:  # it finds itself what those that do only print
            display._table.add(metrics)  # pyright: ignore[reportPrivateUsage]  # nobody else needs to know

    @property
    def _only_prints(self) -> bool:
        """Whether metrics are printed, and not sent elsewhere."""
        return type(self).log_metrics is LogMetricsCallback.log_metrics

    @override
    def on_prepare_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Note that a run begins."""
        self._updated = None

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
        self._log_updated(trainer, lambda name: "train" in name)

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Log all other metrics."""
        self._log_updated(trainer, lambda name: "train" not in name)

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Log what was updated after the metrics had been logged, or without an evaluation."""
        self._log_updated(trainer)

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Log what a callback after this one has recorded at the end of the last epoch."""
        self._log_updated(trainer)

    @override
    def on_evaluation_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Log what was updated after the metrics had been logged."""
        self._log_updated(trainer)

    def _pass_over_earlier_runs(self, trainer: AnyTrainer) -> None:
        if self._updated is None:
            self._updated = UpdatedMetrics(trainer.run_history)

    def _log_updated(self, trainer: AnyTrainer, wanted: Callable[[str], bool] = lambda name: True) -> None:
        if self._updated is not None and (metrics := self._updated.take(trainer.run_history, wanted)):
            self.log_metrics(trainer, metrics)


class EpochTable:
    """The rows of one run.

    Args:
        shows: Whether a metric is shown, by its name.
        greater_is_better: For metrics by name, whether a higher value is better, if that is known.

    Attributes:
        is_within_epoch: Whether the next row is of an evaluation within a training epoch.
    """

    def __init__(
        self, shows: Callable[[str], bool] = is_loss, greater_is_better: Mapping[str, bool] = MappingProxyType({})
    ) -> None:
        self.is_within_epoch: bool = False
        self._shows = shows
        self._greater_is_better = greater_is_better
        self._rows = EpochRows()
        self._best: dict[str, BestMetric] = {}
        self._updated: UpdatedMetrics | None = None
        self._metrics: dict[str, float] = {}

    def begin(self, trainer: AnyTrainer) -> None:
        """Note what was recorded before this run, which by its first epoch is reset or restored."""
        if self._updated is None:
            self._updated = UpdatedMetrics(trainer.run_history)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Note what the next row is going to say, by the full names of the metrics."""
        self._metrics.update(metrics)

    def take(self, trainer: AnyTrainer, wanted: Callable[[str], bool] = lambda name: True) -> None:
        """Note for the next row the metrics that were updated since this was done last."""
        if self._updated is not None:
            self.add(self._updated.take(trainer.run_history, lambda name: self._shows(name) and wanted(name)))

    def print_late(self, trainer: AnyTrainer, prefix: str = "") -> None:
        """Print below the last row what was recorded after it.

        Args:
            trainer: The trainer.
            prefix: What the names of these metrics begin with.
        """
        self.take(trainer, lambda name: name.startswith(prefix))
        self.print_pairs(trainer, indent=7)

    def print_pairs(self, trainer: AnyTrainer, indent: int = 2) -> None:
        """Print what was noted as names and values, if anything was."""
        metrics, self._metrics = self._metrics, {}
        if metrics:
            trainer.print("\n".join(format_pairs(metrics, indent=indent)), flush=True)

    def print_row(self, trainer: AnyTrainer, figures: Mapping[str, str]) -> None:
        """Print what was noted as a row, if anything was.

        Args:
            trainer: The trainer.
            figures: The last cells by their titles; the same titles in each row.
        """
        metrics, self._metrics = self._metrics, {}
        is_within_epoch, self.is_within_epoch = self.is_within_epoch, False
        if not metrics:
            return
        directions = known_directions(trainer, self._greater_is_better)
        best = {name for name, value in metrics.items() if self._is_best(trainer, name, value, directions)}
        epoch = str(trainer.run_history.current_epoch)
        if is_within_epoch:
            # They have the columns of the evaluation after the epoch: the same is measured there.
            metrics = {name.removeprefix(INTERMEDIATE_PREFIX): value for name, value in metrics.items()}
            best = {name.removeprefix(INTERMEDIATE_PREFIX) for name in best}
            epoch = _epochs_trained(trainer)
        has_train_loss = is_within_epoch or "train_loss_epoch" in trainer.run_history.get_metric_names()
        expected = ["train_loss_epoch"] if has_train_loss else []
        # Without flush, lines of the progress, which are written at once, would overtake these in a log file.
        trainer.print("\n".join(self._rows.lines(epoch, metrics, best, figures, expected)), flush=True)

    def _is_best(self, trainer: AnyTrainer, name: str, value: float, directions: Mapping[str, bool]) -> bool:
        """Return whether a value is better than in all rows before, including the rows of an interrupted run."""
        higher = directions.get(name, None if "train" in name else direction_in_name(name))
        if higher is None:
            return False
        epoch = trainer.run_history.current_epoch
        if name not in self._best:
            self._best[name] = BestMetric(greater_is_better=higher)
            for earlier, of_epoch in values_with_epochs(trainer.run_history, name)[:-1]:
                if of_epoch < epoch or name.startswith(INTERMEDIATE_PREFIX):
                    self._best[name].update(earlier, of_epoch)
        is_first = self._best[name].value is None
        return self._best[name].update(value, epoch) and not is_first


class RowDisplay(TrainerCallback):
    """The callback that prints the rows, to which others add what they know."""

    joins_sanity_evaluation = False

    def __init__(self) -> None:
        self._table = EpochTable()


def known_directions(trainer: AnyTrainer, told: Mapping[str, bool]) -> dict[str, bool]:
    """Return whether a higher value is better, for metrics by name, as callbacks judge or have been told."""
    judges = [one for one in trainer.callback_handler.callbacks if isinstance(one, JudgesMetric)]
    # The first of several decides.
    return {**{judge.watch_metric: judge.greater_is_better for judge in reversed(judges)}, **told}


def _epochs_trained(trainer: AnyTrainer) -> str:
    """How many epochs were trained so far, as "1.25"; of a stream without an end, after which update: "@500"."""
    lengths, completed = trainer.epoch_lengths, trainer.num_epochs_completed
    if not lengths.are_known:
        return f"@{trainer.num_updates_completed}"
    done = trainer.num_updates_completed - lengths.updates_before(completed)
    part = done / lengths.updates_of(completed)
    return f"{trainer.run_history.current_epoch - 1 + part:.2f}"
