"""The table that closes a training run: the last and the best value of each metric."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from pa_core.callbacks.best_metric import BestMetric

__all__ = ["MetricSummary", "format_duration", "format_table", "greater_is_better", "summarise"]

_LOWER = frozenset(
    (
        "loss",
        "losses",
        "error",
        "err",
        "mae",
        "mse",
        "rmse",
        "mape",
        "nll",
        "perplexity",
        "ppl",
        "wer",
        "cer",
        "fid",
        "divergence",
        "distance",
    )
)
_HIGHER = frozenset(
    (
        "accuracy",
        "acc",
        "precision",
        "recall",
        "f1",
        "auc",
        "auroc",
        "auprc",
        "ap",
        "map",
        "iou",
        "dice",
        "score",
        "bleu",
        "rouge",
        "r2",
        "psnr",
        "ssim",
        "top1",
        "top5",
        "mcc",
        "kappa",
        "specificity",
        "sensitivity",
        "jaccard",
    )
)
_MINUTE, _HOUR = 60, 3600


class MetricSummary(NamedTuple):
    """What the table says about one metric; ``best`` and ``best_epoch`` are None where they are not known."""

    name: str
    last: float
    best: float | None
    best_epoch: int | None


def greater_is_better(metric_name: str) -> bool | None:
    """Tell from the words of a metric's name which direction is the better one; None if they do not say.

    Example:
        >>> greater_is_better("eval_loss_epoch"), greater_is_better("top1_accuracy"), greater_is_better("lr")
        (False, True, None)
    """
    words = set(re.split(r"[^a-z0-9]+", metric_name.lower()))
    if words & _LOWER:
        return False
    return True if words & _HIGHER else None


def summarise(name: str, records: Iterable[tuple[float, int | None]], higher: bool | None) -> MetricSummary:
    """Summarise what was recorded of one metric.

    Args:
        name: The name of the metric.
        records: Its values, at least one, each with its epoch if that is known.
        higher: Whether a higher value is better; None if neither is.

    Example:
        >>> summarise("accuracy", [(0.5, 1), (0.75, 2), (0.625, 3)], higher=True)
        MetricSummary(name='accuracy', last=0.625, best=0.75, best_epoch=2)
    """
    last, best_epoch = math.nan, None
    best = BestMetric(greater_is_better=bool(higher))
    for last, epoch in records:
        if best.update(last, epoch or 0):
            best_epoch = epoch
    return (
        MetricSummary(name, last, None, None)
        if higher is None
        else MetricSummary(name, last, best.value, best_epoch)
    )


def format_table(metrics: Iterable[MetricSummary]) -> str:
    """Lay the summaries out in aligned columns, one line for each metric; empty without any.

    Example:
        >>> print(format_table([MetricSummary("eval_loss_epoch", 0.25, 0.125, 3)]))
          metric           last   best  epoch
          eval_loss_epoch  0.25  0.125      3
    """
    rows = [
        (metric.name, _number(metric.last), _number(metric.best), _number(metric.best_epoch))
        for metric in metrics
    ]
    if not rows:
        return ""
    rows.insert(0, ("metric", "last", "best", "epoch"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  "
        + "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )


def format_duration(seconds: float) -> str:
    """Return a duration with as many digits as mean something.

    Example:
        >>> format_duration(3.14159), format_duration(75), format_duration(4000)
        ('3.14 s', '1 min 15 s', '1 h 06 min')
    """
    if seconds < _MINUTE:
        return f"{seconds:.3g} s"
    whole = int(seconds)
    if seconds < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE:02d} s"
    return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE:02d} min"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
