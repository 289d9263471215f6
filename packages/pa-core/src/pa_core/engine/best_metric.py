"""The best value of a metric so far, and whether higher values are better, for callbacks that watch a metric."""

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
    """Keep the best value of a metric, and its epoch.

    Use it in your own callback that watches a metric, for example to save the model or to stop the run;
    ``SaveBestModelCallback`` and ``EarlyStoppingCallback`` use it. NaN is never an improvement, and the first value
    that is a number always is.

    Args:
        greater_is_better: Whether a higher value is better, as for an accuracy. The default, False, suits a loss.
        min_change: The smallest change that counts as an improvement, in the unit of the metric, at least 0. It is
            measured from the best value, so that small steps in the right direction add up. The default, 0, accepts any
            better value.

    Attributes:
        value: The best value as a float; None before the first value.
        epoch: The number of the epoch of the best value; None before the first value.
        greater_is_better: The value that was passed.
        min_change: The value that was passed.

    Raises:
        ConfigurationError: ``min_change`` is negative or not finite.

    Example:
        >>> from pa_core.callbacks import BestMetric
        >>> best = BestMetric(greater_is_better=True, min_change=0.01)
        >>> [best.update(accuracy, epoch) for epoch, accuracy in enumerate([0.5, 0.505, 0.52], start=1)]
        [True, False, True]
        >>> best.value, best.epoch
        (0.52, 3)
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

        Lower is better, unless the object was created with ``greater_is_better=True``. Call ``update`` instead if the
        value should become the best value.

        Args:
            value: The value of the metric; NaN is never better.

        Returns:
            True for the first number, and for a value that is better than ``best.value`` by at least ``min_change``
            (which is 0 by default; an equal value is not better). False otherwise.

        Example:
            >>> from pa_core.callbacks import BestMetric
            >>> best = BestMetric()
            >>> _ = best.update(0.5, epoch=1)
            >>> best.is_improved_by(0.4), best.is_improved_by(0.6), best.value
            (True, False, 0.5)
        """
        if math.isnan(value):
            return False
        if self.value is None:
            return True
        gain = value - self.value if self.greater_is_better else self.value - value
        return gain > 0 and gain >= self.min_change

    def update(self, value: float, epoch: int) -> bool:
        """Keep a value if it is better than the best value so far, and return whether it is.

        Lower is better, unless the object was created with ``greater_is_better=True``. You call it once for each new
        value, on every process, for example in ``on_training_run_epoch_end``. ``is_improved_by`` compares without
        keeping the value.

        Args:
            value: The value of the metric. It must be the same on every process if they save or stop together;
                ``watched_value`` returns such a value. NaN is never kept.
            epoch: The number of its epoch, for example ``trainer.run_history.current_epoch``.

        Returns:
            True if the value is the first number, or better by at least ``min_change``; ``best.value`` is then this
            value. False if the best value does not change.

        Example:
            >>> from pa_core.callbacks import BestMetric
            >>> best = BestMetric()
            >>> best.update(0.5, epoch=1), best.update(0.6, epoch=2), best.value, best.epoch
            (True, False, 0.5, 1)
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
        """Forget the best value and its epoch, so that the next number is an improvement.

        You call it when a new run starts, for example in ``on_training_run_start``. The direction and ``min_change`` do
        not change.

        Example:
            >>> from pa_core.callbacks import BestMetric
            >>> best = BestMetric()
            >>> _ = best.update(0.5, epoch=1)
            >>> best.reset()
            >>> best.value, best.update(0.9, epoch=1)
            (None, True)
        """
        self.value = None
        self.epoch = None

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and its epoch, for the training state of your callback.

        You call it in the ``state_dict`` of your callback, so that a resumed run knows the best value.

        Returns:
            A dictionary with the keys "value" (a float or None) and "epoch" (an integer or None). The direction and
            ``min_change`` are not in it, because the constructor sets them.

        Example:
            >>> from pa_core.callbacks import BestMetric
            >>> best = BestMetric()
            >>> _ = best.update(0.5, epoch=1)
            >>> best.state_dict()
            {'value': 0.5, 'epoch': 1}
        """
        return {"value": self.value, "epoch": self.epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best value and its epoch from the result of ``state_dict``.

        You call it in the ``load_state_dict`` of your callback, when a run resumes.

        Args:
            state_dict: A dictionary with the keys "value" and "epoch"; other keys are ignored.

        Raises:
            KeyError: One of the two keys is missing.

        Example:
            >>> from pa_core.callbacks import BestMetric
            >>> resumed = BestMetric()
            >>> resumed.load_state_dict({"value": 0.5, "epoch": 1})
            >>> resumed.is_improved_by(0.6)
            False
        """
        self.value = state_dict["value"]
        self.epoch = state_dict["epoch"]


def require_watchable(trainer: AnyTrainer, metric_name: str) -> None:
    """Raise an error if no evaluation of the run can record the metric that a callback watches.

    Call it in ``on_training_run_start`` of a custom callback that watches a metric, so that a wrong name ends the run
    before any time is spent. It checks only evaluation losses, which are never recorded without an evaluation dataset,
    and whose names contain the name of the set if there are several sets. Any other name is accepted, because a
    callback may record it later; ``watched_value`` then raises an error if it was not recorded. The name of a loss
    without ``_epoch`` causes a ``UserWarning``.

    Args:
        trainer: The trainer, as passed to ``on_training_run_start``.
        metric_name: The full name of the metric that your callback will watch, for example "eval_loss_epoch".

    Raises:
        ConfigurationError: The metric would never be recorded. The message contains a name that would be recorded.

    Example:
        >>> import torch
        >>> from pa_core import AnyTrainer, Trainer, TrainerCallback
        >>> from pa_core.callbacks import require_watchable
        >>> from pa_core.testing import make_regression
        >>> class WatchLoss(TrainerCallback):
        ...     def on_training_run_start(self, trainer: AnyTrainer, **kwargs: object) -> None:
        ...         require_watchable(trainer, "eval_loss_epoch")
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[WatchLoss])
        >>> trainer.train(make_regression(16), num_epochs=1)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        pa_core.errors.ConfigurationError: The metric to watch is not recorded without an evaluation: ...
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

    Use it in your own callbacks that save or stop, which all processes must do together. A metric that each process
    computes itself could differ between processes, so the value of the first process is returned. Every process must
    call this function at the same point. To read a metric on one process only, use
    ``trainer.run_history.get_latest_metric``.

    Args:
        trainer: The trainer.
        metric_name: The full name of the metric, for example "eval_loss_epoch".

    Returns:
        The value as a Python float.

    Raises:
        MetricNotFoundError: No value was recorded under this name. It is also caught as a ``KeyError``.
        ConfigurationError: The latest value is not a number, for example a dictionary.

    Example:
        >>> import torch
        >>> from pa_core import AnyTrainer, StopTrainingError, Trainer, TrainerCallback
        >>> from pa_core.callbacks import watched_value
        >>> from pa_core.testing import make_regression
        >>> class StopWhenGood(TrainerCallback):
        ...     def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: object) -> None:
        ...         if watched_value(trainer, "train_loss_epoch") < 1000:
        ...             raise StopTrainingError("The loss is below 1000.")
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[StopWhenGood])
        >>> trainer.train(make_regression(16), num_epochs=5)
        >>> trainer.num_epochs_completed
        1
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
        MetricNotFoundError: A name is misspelled.
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
"""The default for the ``greater_is_better`` argument of a custom callback that watches a metric.

It equals False, so that a lower value is better. ``resolve_direction``, to which the constructor passes the argument,
distinguishes it from a False that the caller passed, and warns if the name of the metric suggests the opposite.
"""


@runtime_checkable
class JudgesMetric(Protocol):
    """The interface of callbacks that watch a metric, so that tables and rows mark its best value.

    Example:
        >>> from pa_core import SaveBestModelCallback
        >>> isinstance(SaveBestModelCallback(), JudgesMetric)
        True
    """

    watch_metric: str
    greater_is_better: bool


def direction_in_name(metric_name: str) -> bool | None:
    """Return whether a higher value is better, judging by the words of the name; None if they do not say.

    Words are separated by anything that is not a letter or a digit, or by capital letters. A word that indicates that a
    lower value is better takes precedence.

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
    """Return ``greater_is_better`` as a plain boolean, and warn if it contradicts the name of the metric.

    Call it in the constructor of a custom callback that watches a metric and has a ``greater_is_better`` argument with
    the default ``FALSE_BY_DEFAULT``. The value that the caller passed always decides; the name of the metric only
    causes a ``UserWarning`` at the line that creates the callback. There are two such cases: ``greater_is_better`` is
    left out for a metric like "eval_accuracy", or it is True for a loss.

    Args:
        watch_metric: The full name of the metric that the callback watches.
        greater_is_better: True or False if the caller passed it, which silences the first warning, or
            ``FALSE_BY_DEFAULT``.

    Returns:
        True if a higher value is better, False if a lower value is better.

    Example:
        >>> from pa_core import TrainerCallback
        >>> from pa_core.callbacks import FALSE_BY_DEFAULT, resolve_direction
        >>> class Judge(TrainerCallback):
        ...     def __init__(self, watch_metric: str, greater_is_better: bool = FALSE_BY_DEFAULT) -> None:
        ...         self.greater_is_better = resolve_direction(watch_metric, greater_is_better)
        >>> Judge("eval_accuracy", greater_is_better=True).greater_is_better
        True
        >>> Judge("eval_loss_epoch").greater_is_better
        False
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
