"""Ends a run that no longer makes progress."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from typing_extensions import override

from pa_core import AnyTrainer, ConfigurationError, StopTrainingError, TrainerCallback
from pa_core.callbacks import (
    FALSE_BY_DEFAULT,
    BestMetric,
    check_count,
    require_watchable,
    resolve_direction,
    watched_value,
)


class EarlyStoppingCallback(TrainerCallback):
    """Ends the run when a metric has not improved for some epochs.

    Use it if you do not know how many epochs a model needs. Pass a large ``num_epochs``, and add
    ``SaveBestModelCallback`` to keep the best weights, because this callback saves nothing. When it ends the run, the
    usual events follow and ``train()`` returns normally. The first epoch sets the best value. A later epoch is an
    improvement if its value is better by at least the threshold, which is in the unit of the metric: with a threshold
    of 0.01, a loss of 0.50 has to fall to 0.49. The change is measured from the best value, not from the previous
    epoch, so slow progress counts as soon as the small steps add up to the threshold. NaN is never an improvement.

    Epochs in which the metric is not evaluated, because its ``EvaluationSet`` is due less often, do not count, so the
    patience is then a number of evaluations.

    Args:
        early_stopping_patience: The number of consecutive epochs without an improvement after which the run ends, at
            least 1. The default, 1, is the same as in pytorch-accelerated and ends the run after the first such epoch.
            Most metrics are too noisy for that, so pass 3 to 10.
        early_stopping_threshold: The smallest change in the metric that counts as an improvement, as an absolute
            number. The default, 0.01, suits losses of about 1; pass a smaller threshold for smaller losses. With 0, any
            better value counts.
        watch_metric: The metric to watch, by its name in the run history. The default, ``eval_loss_epoch``, is the mean
            loss of the evaluation after an epoch, and needs an ``eval_dataset``.
        greater_is_better: Whether a higher value is better. The default, False, suits a loss. If you omit it and the
            name of the metric suggests that higher is better, as ``accuracy`` does, a warning is given.
        reset_on_train: Whether each training run starts without a best value. The default, True, judges each run by
            itself. If False, a run has to improve on earlier runs. Each run counts the epochs without an improvement
            from 0, except that a run that resumes from a training state continues with the best value and the count of
            that state.

    Attributes:
        best: ``best.value`` is the best value, or None before the first value, and ``best.epoch`` is its epoch, counted
            from 1.
        epochs_without_improvement: The current number of consecutive epochs without an improvement; 0 before a run.
            Training states contain this number and ``best``.

    Raises:
        ConfigurationError: The patience is not a whole number of at least 1, or the threshold is not a finite number of
            at least 0. ``train()`` raises it at the start if no evaluation can record ``watch_metric``.
        MetricNotFoundError: ``watch_metric`` was not recorded by the end of the first epoch.

    Example:
        >>> import torch
        >>> from pa_callbacks_extra import EarlyStoppingCallback
        >>> from pa_core import DEFAULT_CALLBACKS, Trainer
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> samples = torch.utils.data.TensorDataset(torch.ones(8, 1), torch.ones(8, 1))
        >>> stop_early = EarlyStoppingCallback(early_stopping_patience=2)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[*DEFAULT_CALLBACKS, stop_early])
        >>> trainer.train(samples, num_epochs=1000, eval_dataset=samples)  # doctest: +ELLIPSIS
        Training starts: 1,000 epochs ...
        >>> stop_early.best.epoch, stop_early.epochs_without_improvement
        (3, 2)
    """

    def __init__(
        self,
        early_stopping_patience: int = 1,
        early_stopping_threshold: float = 0.01,
        watch_metric: str = "eval_loss_epoch",
        greater_is_better: bool = FALSE_BY_DEFAULT,
        reset_on_train: bool = True,
    ) -> None:
        check_count("early_stopping_patience", early_stopping_patience)
        threshold: object = early_stopping_threshold
        if not (isinstance(threshold, Real) and 0 <= float(threshold) < math.inf):
            raise ConfigurationError(
                f"early_stopping_threshold must be a finite number >= 0, got {early_stopping_threshold!r}. "
                "Set the direction with greater_is_better."
            )
        self.early_stopping_patience = early_stopping_patience
        self.early_stopping_threshold = early_stopping_threshold
        self.watch_metric = watch_metric
        self.greater_is_better: bool = resolve_direction(watch_metric, greater_is_better)
        self.reset_on_train = reset_on_train
        self.best: BestMetric = BestMetric(self.greater_is_better, min_change=early_stopping_threshold)
        self.epochs_without_improvement: int = 0

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Start counting from 0, and forget the best value of earlier runs unless ``reset_on_train`` is False.

        Args:
            trainer: The trainer.
            **kwargs: Not used.

        Raises:
            ConfigurationError: No evaluation of the run can record the metric.
        """
        require_watchable(trainer, self.watch_metric)
        self.epochs_without_improvement = 0
        if self.reset_on_train:
            self.best.reset()

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Compare the metric of the epoch, and end the run if it has not improved for long enough.

        Args:
            trainer: The trainer.
            **kwargs: Not used.

        Raises:
            StopTrainingError: The metric has not improved for ``early_stopping_patience`` epochs. It ends the run.
            MetricNotFoundError: The metric was not recorded.
        """
        if not trainer.is_evaluated_in_epoch(self.watch_metric):
            return
        value, epoch = watched_value(trainer, self.watch_metric), trainer.run_history.current_epoch
        if self.best.update(value, epoch):
            self.epochs_without_improvement = 0
            return
        self.epochs_without_improvement += 1
        if self.epochs_without_improvement >= self.early_stopping_patience:
            raise StopTrainingError(self._reason(value))

    def _reason(self, value: float) -> str:
        epochs, best = self.epochs_without_improvement, self.best
        reason = f"{self.watch_metric} is {value:.6g}: {epochs} epoch{'' if epochs == 1 else 's in a row'} without an "
        reason += "improvement"
        if self.early_stopping_threshold > 0:
            reason += f" of at least early_stopping_threshold={self.early_stopping_threshold:g}"
        if best.value is None:
            return f"{reason}."
        return f"{reason} on {best.value:.6g}, of epoch {best.epoch}."

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the best value, its epoch, and the number of epochs without an improvement, for a training state.

        The trainer calls it when it saves a training state, so you need not call it yourself.

        Returns:
            A dictionary with the keys "best" (a dictionary of the value and the epoch) and
            "epochs_without_improvement".

        Example:
            >>> from pa_callbacks_extra import EarlyStoppingCallback
            >>> EarlyStoppingCallback().state_dict()
            {'best': {'value': None, 'epoch': None}, 'epochs_without_improvement': 0}
        """
        return {
            "best": self.best.state_dict(),
            "epochs_without_improvement": self.epochs_without_improvement,
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the best value and the count of the resumed run.

        The trainer calls it on every process when a run resumes, after ``on_training_run_start``, so you need not call
        it yourself. The patience and the threshold of the constructor are not changed.

        Args:
            state_dict: The result of ``state_dict``.

        Raises:
            KeyError: An entry is missing.

        Example:
            >>> from pa_callbacks_extra import EarlyStoppingCallback
            >>> stop_early = EarlyStoppingCallback(early_stopping_patience=3)
            >>> stop_early.load_state_dict({"best": {"value": 0.25, "epoch": 4}, "epochs_without_improvement": 2})
            >>> stop_early.best.epoch, stop_early.epochs_without_improvement
            (4, 2)
        """
        self.best.load_state_dict(state_dict["best"])
        self.epochs_without_improvement = state_dict["epochs_without_improvement"]
