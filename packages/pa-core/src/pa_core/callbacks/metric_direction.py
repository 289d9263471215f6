"""Whether a higher or a lower value of a metric is better: one rule for all callers."""

from __future__ import annotations

import re
import sys
import warnings
from typing import Protocol, cast, runtime_checkable

from typing_extensions import override

from pa_core.callbacks.epoch_rows import is_loss

__all__ = ["FALSE_BY_DEFAULT", "JudgesMetric", "direction_in_name", "resolve_direction"]

# The words are those of metric names as scripts, torchmetrics and scikit-learn have them.
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


class _FalseByDefault(int):
    """Equal to False, and not the False that a caller writes."""

    @override
    def __repr__(self) -> str:
        return "False"


FALSE_BY_DEFAULT: bool = cast("bool", _FalseByDefault())
"""The default of ``greater_is_better``: a lower value is better, unless the caller says something else."""


@runtime_checkable
class JudgesMetric(Protocol):
    """A callback that decides which value of a metric is the best.

    Example:
        >>> from pa_core import SaveBestModelCallback
        >>> isinstance(SaveBestModelCallback(), JudgesMetric)
        True
    """

    watch_metric: str
    greater_is_better: bool


def direction_in_name(metric_name: str) -> bool | None:
    """Tell from the words of a metric's name whether a higher value is better; None if they do not say.

    Words are separated by anything that is not a letter or a digit, or by capital letters. A word that speaks for a
    lower value counts more than one that speaks for a higher value.

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
    """Return whether a higher value is better, and warn where that contradicts the name of the metric.

    Of a loss a lower value is better, even if the caller says otherwise; of other metrics, what the caller says counts.

    To be called by the constructor of a callback.

    Args:
        watch_metric: The metric that the callback judges by.
        greater_is_better: What the caller said, or ``FALSE_BY_DEFAULT``.
    """
    if greater_is_better is FALSE_BY_DEFAULT and direction_in_name(watch_metric):
        _warn_of_creation(
            f"A lower {watch_metric} counts as better, as greater_is_better is False by default. Pass "
            "greater_is_better=True, or greater_is_better=False if lower is better indeed."
        )
    if greater_is_better and is_loss(watch_metric):
        _warn_of_creation(
            f"A higher {watch_metric} counts as better, as greater_is_better=True. Of a loss a lower value "
            "is better: leave greater_is_better out."
        )
    return bool(greater_is_better)


def _warn_of_creation(message: str) -> None:
    """Warn at the line that creates the callback, which constructors of its base classes may have called this for."""
    level, frame = 3, sys._getframe(2)  # pyright: ignore[reportPrivateUsage]  # documented
    while frame.f_code.co_name == "__init__" and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)


def _words(metric_name: str) -> set[str]:
    whole = re.findall(r"[A-Za-z0-9]+", metric_name)
    parts = [part for word in whole for part in _CAMEL_CASE.findall(word)]
    return {word.lower() for word in (*whole, *parts)}
