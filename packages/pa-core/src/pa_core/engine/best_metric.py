"""The best value of a metric so far, and whether higher values are better, for callbacks that judge by a metric."""

from __future__ import annotations

import difflib
import math
import re
import sys
import warnings
from collections.abc import Iterable
from typing import Any, Protocol, cast, runtime_checkable

import torch
from typing_extensions import override

from pa_core.engine.any_trainer import AnyTrainer
from pa_core.errors import ConfigurationError, MetricNotFoundError
from pa_core.tracking.metric_values import as_number, is_loss
from pa_core.tracking.run_history import INTERMEDIATE_PREFIX
from pa_core.user_warnings import warn_user

_SURELY_MEANT = 0.85
# Words in names of metrics of scripts, torchmetrics and scikit-learn.
_LOWER = frozenset({
    "bce", "bpb", "bpc", "bpd", "brier", "ce", "cer", "crossentropy", "dissimilarity", "distance", "divergence",
    "eer", "err", "error", "fallout", "fid", "fnr", "fpr", "hamming", "kid", "kl", "logloss", "loss", "losses",
    "lost", "lpips", "mae", "mape", "mase", "mer", "mse", "msle", "nll", "nlpd", "nrmse", "perplexity", "ppl",
    "rmse", "rmsle", "smape", "ter", "wape", "wer",
})  # fmt: skip
_HIGHER = frozenset({
    "acc", "accuracy", "ap", "ap50", "ap75", "auc", "aucpr", "auprc", "auroc", "bleu", "chrf", "cider", "corr",
    "correlation", "dcg", "dice", "elbo", "explained", "f1", "f2", "fbeta", "fscore", "hit", "hits", "iou",
    "jaccard", "kappa", "likelihood", "map", "map50", "map75", "match", "matthews", "mcc", "meteor", "miou", "mrr",
    "ndcg", "pearson", "pesq", "precision", "psnr", "r2", "recall", "reward", "rouge", "rouge1",
    "rouge2", "rougel", "score", "sdr", "sensitivity", "similarity", "sisdr", "snr", "spearman", "specificity",
    "ssim", "stoi", "tnr", "top1", "top3", "top5", "tpr",
})  # fmt: skip
_ENDINGS_LOWER = ("loss", "error", "fallout", "perplexity")
_ENDINGS_HIGHER = ("accuracy", "score", "iou", "auroc", "ssim")
_CAMEL_CASE = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+[0-9]*|[A-Z]+[0-9]*")


class BestMetric:
    """Keep the best value of a metric, and its epoch; for your own callbacks that judge by a metric.

    NaN is never an improvement, and the first value that is a number always is.

    Args:
        greater_is_better: Whether a higher value is better, as for an accuracy. The default, False, suits a loss.
        min_change: The smallest change that is an improvement; the default is 0. It is measured from the best value, so
            that many small steps in the right direction add up.

    Attributes:
        value: The best value, None before the first.
        epoch: The epoch of the best value, None before the first.

    Raises:
        ConfigurationError: ``min_change`` is negative or not finite.

    Example:
        >>> best = BestMetric(greater_is_better=True, min_change=0.01)
        >>> [best.update(accuracy, epoch) for epoch, accuracy in enumerate([0.5, 0.505, 0.52], start=1)]
        [True, False, True]
        >>> best
        <BestMetric: 0.52 of epoch 3, greater is better>
    """

    def __init__(self, greater_is_better: bool = False, min_change: float = 0.0) -> None:
        if not (math.isfinite(min_change) and min_change >= 0):
            raise ConfigurationError(f"min_change must be a finite number of at least 0, got {min_change!r}.")
        self.greater_is_better = greater_is_better
        self.min_change = min_change
        self.value: float | None = None
        self.epoch: int | None = None

    def is_improved_by(self, value: float) -> bool:
        """Return whether a value is better than the best value so far, without keeping it.

        Args:
            value: The value of the metric; NaN is never better.
        """
        if math.isnan(value):
            return False
        if self.value is None:
            return True
        gain = value - self.value if self.greater_is_better else self.value - value
        return gain > 0 and gain >= self.min_change

    def update(self, value: float, epoch: int) -> bool:
        """Keep a value if it is better than the best value so far, and return whether it is.

        Args:
            value: The value of the metric, the same on every process.
            epoch: The number of its epoch, for example ``trainer.run_history.current_epoch``.
        """
        improved = self.is_improved_by(value)
        if improved:
            self.value = value
            self.epoch = epoch
        return improved

    @override
    def __repr__(self) -> str:
        best = "none so far" if self.value is None else f"{self.value:.6g} of epoch {self.epoch}"
        return f"<{type(self).__name__}: {best}, {'greater' if self.greater_is_better else 'lower'} is better>"

    def reset(self) -> None:
        """Remove the best value, for example when a new run starts: the next number is an improvement."""
        self.value = None
        self.epoch = None

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and its epoch, as "value" and "epoch", for the ``state_dict`` of your callback."""
        return {"value": self.value, "epoch": self.epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the result of ``state_dict``.

        Args:
            state_dict: A dictionary with "value" and "epoch".
        """
        self.value = state_dict["value"]
        self.epoch = state_dict["epoch"]


def require_watchable(trainer: AnyTrainer, metric_name: str) -> None:
    """Raise an error for a metric to watch that no evaluation of the run records; call it when a run starts.

    That is the loss of an evaluation without an evaluation dataset, or of a single dataset if the sets have names. For
    the name of a loss without ``_epoch``, a warning is shown.

    Args:
        trainer: The trainer, as passed to ``on_training_run_start``.
        metric_name: The full name of the metric that your callback will watch.

    Raises:
        ConfigurationError: The metric would never be recorded.

    Example:
        >>> from pa_core import AnyTrainer, TrainerCallback
        >>> from pa_core.callbacks import require_watchable
        >>> class WatchLoss(TrainerCallback):
        ...     def on_training_run_start(self, trainer: AnyTrainer, **kwargs: object) -> None:
        ...         require_watchable(trainer, "eval_loss_epoch")
    """
    if trainer.eval_sets and f"_{metric_name}".endswith("_eval_loss_epoch"):
        named = [metric_name.replace("eval_loss", f"eval_{name}_loss") for name in trainer.eval_sets]
        raise ConfigurationError(
            "The metric to watch belongs to a single evaluation dataset, and this run has several with names: "
            f"watch_metric={metric_name!r}. Pass watch_metric={named[0]!r}."
        )
    losses = {"train_loss", "eval_loss", *(f"eval_{name}_loss" for name in trainer.eval_sets)}
    if metric_name in losses and metric_name not in trainer.run_history.get_metric_names():
        warn_user(
            f"watch_metric={metric_name!r} is not a loss that a run records. If no callback records it, the "
            f"run ends after the first epoch: pass watch_metric='{metric_name}_epoch'."
        )
    # A custom loop evaluates itself, which is not known before.
    is_evaluated = trainer.eval_dataloader is not None or hasattr(trainer, "evaluation_batches")
    if not is_evaluated and metric_name.removeprefix(INTERMEDIATE_PREFIX) == "eval_loss_epoch":
        raise ConfigurationError(
            f"The metric to watch is not recorded without an evaluation: watch_metric={metric_name!r} and no "
            "eval_dataset. Pass eval_dataset to Trainer.train(), or watch_metric='train_loss_epoch'."
        )


def watched_value(trainer: AnyTrainer, metric_name: str) -> float:
    """Return the latest value of a metric, the same value on every process.

    Use it in callbacks that save or stop, which all processes must do together: a metric that each process computes
    itself could differ, so the value of the first process counts. Every process must call this.

    Args:
        trainer: The trainer.
        metric_name: The full name of the metric, for example "eval_loss_epoch".

    Raises:
        MetricNotFoundError: No value was recorded under this name.
        ConfigurationError: The latest value is not a number.

    Example:
        >>> from pa_core import AnyTrainer, StopTrainingError, TrainerCallback
        >>> from pa_core.callbacks import watched_value
        >>> class StopWhenGood(TrainerCallback):
        ...     def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: object) -> None:
        ...         if watched_value(trainer, "eval_loss_epoch") < 0.1:
        ...             raise StopTrainingError("The loss is below 0.1.")
    """
    recorded = sorted(trainer.run_history.get_metric_names())
    if metric_name not in recorded:
        raise _never_recorded(trainer, metric_name, recorded)
    latest = trainer.run_history.get_latest_metric(metric_name)
    value = as_number(latest)
    if value is None:
        entries = [name for name in recorded if name.startswith(f"{metric_name}_")]
        do = f"Watch a number in it: {', '.join(entries)}." if entries else "Record the number to judge by too."
        raise ConfigurationError(
            f"The metric to watch is not a number: watch_metric={metric_name!r}, for which a {type(latest).__name__} "
            f"was recorded. {do}"
        )
    if trainer.run_config.num_processes == 1:
        return value
    return float(trainer.gather(torch.tensor([value], dtype=torch.float64, device=trainer.device))[0])


def require_recorded_names(trainer: AnyTrainer, metric_names: Iterable[str]) -> None:
    """Raise an error for names that are similar to, but not equal to, names of recorded metrics.

    Other metrics may be recorded in training, or at the end of an epoch.

    Args:
        trainer: The trainer, which has evaluated and not trained yet.
        metric_names: The metrics to watch.

    Raises:
        MetricNotFoundError: A name is misspelt.
    """
    recorded = sorted({*trainer.run_history.get_metric_names(), "train_loss_epoch"})
    for name in metric_names:
        is_known = any(
            f"_{name}".endswith(f"_{metric}") for metric in recorded
        )  # some callbacks evaluate with a prefix
        likely = [metric for metric in recorded if "train" in metric or "train" not in name]
        if not is_known and difflib.get_close_matches(name, likely, n=1, cutoff=_SURELY_MEANT):
            raise _never_recorded(trainer, name, recorded)


def _never_recorded(trainer: AnyTrainer, metric_name: str, recorded: list[str]) -> MetricNotFoundError:
    do = f"Record it before the end of each epoch: run_history.update_metric({metric_name!r}, ...)."
    if f"{metric_name}_epoch" in recorded:
        do = f"Correct the name: watch_metric='{metric_name}_epoch'."
    elif nearest := difflib.get_close_matches(metric_name, recorded, n=1, cutoff=_SURELY_MEANT):
        do = f"Correct the name: watch_metric={nearest[0]!r}."
    elif "eval" in metric_name and trainer.eval_dataloader is None:
        do = "Evaluate in each epoch: pass eval_dataset to Trainer.train(), or do it in your custom training loop."
    return MetricNotFoundError(
        "The metric to watch was never recorded.",
        given=f"watch_metric={metric_name!r}",
        expected=f"a recorded metric: {', '.join(recorded) or 'none so far'}",
        do=do,
    )


class _FalseByDefault(int):
    """A value that equals False, but is a different object from a caller's False."""

    @override
    def __repr__(self) -> str:
        return "False"


FALSE_BY_DEFAULT: bool = cast("bool", _FalseByDefault())
"""The default of ``greater_is_better``: a lower value is better, unless the caller passes an argument."""


@runtime_checkable
class JudgesMetric(Protocol):
    """The interface of callbacks that judge by a metric, so that tables and rows mark its best value.

    Example:
        >>> from pa_core import SaveBestModelCallback
        >>> isinstance(SaveBestModelCallback(), JudgesMetric)
        True
    """

    watch_metric: str
    greater_is_better: bool


def direction_in_name(metric_name: str) -> bool | None:
    """Return whether a higher value is better, judging by the words of the name; None if they do not tell.

    Words are separated by anything that is not a letter or a digit, or by capital letters. A word that indicates that a
    lower value is better has precedence.

    Args:
        metric_name: The name, with its prefix.

    Example:
        >>> [direction_in_name(name) for name in ("eval_loss_epoch", "eval_MulticlassAccuracy", "eval_hits@10", "lr")]
        [False, True, True, None]
        >>> direction_in_name("brier_score")
        False
    """
    words = _words(metric_name)
    if words & _LOWER or any(word.endswith(_ENDINGS_LOWER) for word in words):
        return False
    if {"negative", "likelihood"} <= words or {"cross", "entropy"} <= words:
        return False
    if words & _HIGHER or any(word.endswith(_ENDINGS_HIGHER) for word in words) or {"signal", "ratio"} <= words:
        return True
    return None


def resolve_direction(watch_metric: str, greater_is_better: bool) -> bool:
    """Return whether a higher value is better, and warn if that contradicts the name of the metric.

    For a loss, a lower value is better, even if the caller says otherwise; for other metrics, the caller decides. Call
    it in the constructor of a callback, whose ``greater_is_better`` has the default ``FALSE_BY_DEFAULT``.

    Args:
        watch_metric: The metric that the callback judges by.
        greater_is_better: The argument of the caller, or ``FALSE_BY_DEFAULT``.

    Example:
        >>> resolve_direction("eval_accuracy", True)
        True
    """
    problem = ""
    if greater_is_better is FALSE_BY_DEFAULT and direction_in_name(watch_metric):
        problem = (
            f"A lower {watch_metric} counts as better, because greater_is_better is False by default. Pass "
            "greater_is_better=True, or greater_is_better=False if lower is better indeed."
        )
    elif greater_is_better and is_loss(watch_metric):
        problem = (
            f"A higher {watch_metric} counts as better, because greater_is_better=True. For a loss, a lower value "
            "is better: leave greater_is_better out."
        )
    if problem:
        # at the line that creates the callback, outside of constructors of base classes
        level, frame = 2, sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # documented
        while frame.f_code.co_name == "__init__" and frame.f_back is not None:
            level, frame = level + 1, frame.f_back
        warnings.warn(problem, UserWarning, stacklevel=level)
    return bool(greater_is_better)


def _words(metric_name: str) -> set[str]:
    whole = re.findall(r"[A-Za-z0-9]+", metric_name)
    parts = [part for word in whole for part in _CAMEL_CASE.findall(word)]
    return {word.lower() for word in (*whole, *parts)}
