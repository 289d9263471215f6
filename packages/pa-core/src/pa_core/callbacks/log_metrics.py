"""Logging the metrics of a run as they are recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typing_extensions import override

from pa_core.callbacks.epoch_rows import format_pairs
from pa_core.callbacks.print_progress import PrintProgressCallback
from pa_core.engine.any_trainer import AnyTrainer, TrainerCallback
from pa_core.tracking.run_history import UpdatedMetrics


class LogMetricsCallback(TrainerCallback):
    """Log the latest value of every numeric metric that was updated since it was last logged.

    It is a default callback, and it has two uses. Used as it is, it shows the metrics of the run on the console: it
    adds them to the rows of ``PrintProgressCallback`` or, without such rows, prints names and values, once on each
    machine. To send metrics elsewhere, derive from it and override ``log_metrics``. They then do not appear on the
    console, unless your override also calls ``super().log_metrics(...)``; ``PrintProgressCallback`` still prints the
    losses. For TensorBoard, MLflow or Weights & Biases, use ``TrackerCallback`` from ``pa_callbacks_extra``.

    Metrics with ``train`` in their names are logged when a training epoch ends, and all others after each evaluation.
    Metrics that are updated even later are logged at the end of the epoch. Put callbacks that record metrics before
    this callback. Otherwise, metrics that they record at the end of an epoch are logged with the next epoch, or when
    the run ends. Nothing is kept in training states.

    Example:
        >>> import torch
        >>> from pa_core import AnyTrainer, LogMetricsCallback, Trainer
        >>> from pa_core.testing import make_regression
        >>> class LogToList(LogMetricsCallback):
        ...     def __init__(self) -> None:
        ...         self.logged: list[list[str]] = []
        ...     def log_metrics(self, trainer: AnyTrainer, metrics: dict[str, float]) -> None:
        ...         if trainer.run_config.is_world_process_zero:
        ...             self.logged.append(sorted(metrics))
        >>> model, log = torch.nn.Linear(4, 1), LogToList()
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[log])
        >>> trainer.train(make_regression(16), num_epochs=1, eval_dataset=make_regression(16))
        >>> log.logged
        [['train_loss_epoch'], ['eval_loss_epoch']]
    """

    joins_sanity_evaluation = False
    only_observes = True
    # None before the first epoch of a run. Not set in __init__, because derived loggers need not call it.
    _updated: UpdatedMetrics | None = None

    def log_metrics(self, trainer: AnyTrainer, metrics: dict[str, float]) -> None:
        """Log the latest values of the metrics; override it to send them to a tracker or a file.

        The callback calls it after each training epoch, after each evaluation, and at the end of an epoch or a run, but
        only if metrics were updated since the previous call. It is called on every process, so an override that writes
        must check ``trainer.run_config.is_world_process_zero``. This implementation adds the metrics to the row of
        ``PrintProgressCallback``, or prints them if the trainer has no such callback. An override need not call
        ``super()``.

        Args:
            trainer: The trainer. ``trainer.run_history.current_epoch`` is the epoch number, from 1, and
                ``trainer.num_updates_completed`` is the number of optimizer updates so far.
            metrics: The latest values of the updated metrics as Python numbers, by their full names, for example
                ``{"train_loss_epoch": 0.25}``. It is never empty.

        Example:
            >>> import json
            >>> from pathlib import Path
            >>> from pa_core import AnyTrainer, LogMetricsCallback
            >>> class LogToFile(LogMetricsCallback):
            ...     def log_metrics(self, trainer: AnyTrainer, metrics: dict[str, float]) -> None:
            ...         if trainer.run_config.is_world_process_zero:
            ...             with Path("metrics.jsonl").open("a") as file:
            ...                 print(json.dumps({"update": trainer.num_updates_completed, **metrics}), file=file)
        """
        display = _display(trainer)
        if display is None:
            trainer.print("\n".join(format_pairs(metrics, indent=2)), flush=True)
        elif not self._only_prints:  # the display finds the metrics of callbacks that only print itself
            display._metrics |= metrics  # pyright: ignore[reportPrivateUsage]  # nobody else needs to know

    @property
    def _only_prints(self) -> bool:
        """Whether metrics are only printed, and not sent elsewhere."""
        return type(self).log_metrics is LogMetricsCallback.log_metrics

    @override
    def on_prepare_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Begin a run, whose rows show all metrics unless they are sent elsewhere.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._updated = None
        display = _display(trainer)
        if display is not None and self._only_prints:
            display._shows_all = True  # pyright: ignore[reportPrivateUsage]  # nobody else needs to know

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Skip the metrics recorded before this run; the history is reset or restored by now.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._skip_earlier_runs(trainer)

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Skip the metrics recorded before this run, if it only evaluates.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._skip_earlier_runs(trainer)

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Pass the updated metrics with ``train`` in their names to ``log_metrics``.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._log_updated(trainer, lambda name: "train" in name)

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Pass the updated metrics without ``train`` in their names to ``log_metrics``.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._log_updated(trainer, lambda name: "train" not in name)

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Pass the metrics that were updated after the evaluation, if any, to ``log_metrics``.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._log_updated(trainer)

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Pass the metrics that later callbacks recorded at the end of the last epoch to ``log_metrics``.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._log_updated(trainer)

    @override
    def on_evaluation_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Pass the metrics that were updated after the evaluation to ``log_metrics``.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._log_updated(trainer)

    def _skip_earlier_runs(self, trainer: AnyTrainer) -> None:
        if self._updated is None:
            self._updated = UpdatedMetrics(trainer.run_history)

    def _log_updated(self, trainer: AnyTrainer, wanted: Callable[[str], bool] = lambda name: True) -> None:
        if self._updated is not None and (metrics := self._updated.pop(trainer.run_history, wanted)):
            self.log_metrics(trainer, metrics)


def _display(trainer: AnyTrainer) -> PrintProgressCallback | None:
    return next(
        (callback for callback in trainer.callback_handler.callbacks if isinstance(callback, PrintProgressCallback)),
        None,
    )
