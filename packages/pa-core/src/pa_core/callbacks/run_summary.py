"""What a run trains, said when it starts, and the table of its metrics, with which it ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from pa_core.callbacks.best_metric import BestMetric, direction_in_name
from pa_core.model_tensors import parameters_of
from pa_core.tracking import RunHistory
from pa_core.tracking.run_history import values_with_epochs

_MINUTE, _HOUR = 60, 3600
_NUM_NAMES = 2


class MetricSummary(NamedTuple):
    """What the table says about one metric; ``best`` and ``best_epoch`` are None where they are not known."""

    name: str
    last: float
    best: float | None
    best_epoch: int | None


def summarise(history: RunHistory, greater_is_better: Mapping[str, bool]) -> list[MetricSummary]:
    """Summarise all metrics of a history that have numbers, by name.

    Args:
        history: The history; the epoch of a value is known of an ``InMemoryRunHistory`` only.
        greater_is_better: For metrics by name, whether a higher value is better. For all others their names
            have to tell.

    Example:
        >>> from pa_core import InMemoryRunHistory
        >>> history = InMemoryRunHistory()
        >>> for accuracy in (0.5, 0.75, 0.625):
        ...     history.update_metric("accuracy", accuracy)
        >>> summarise(history, {})
        [MetricSummary(name='accuracy', last=0.625, best=0.75, best_epoch=1)]
    """
    values = {name: values_with_epochs(history, name) for name in sorted(history.get_metric_names())}
    return [
        _summary(name, of_metric, greater_is_better.get(name, direction_in_name(name)))
        for name, of_metric in values.items()
        if of_metric
    ]


def format_table(metrics: Iterable[MetricSummary]) -> str:
    """Lay the summaries out in aligned columns, one line for each metric; empty without any.

    Example:
        >>> print(format_table([MetricSummary("eval_loss_epoch", 0.25, 0.125, 3)]))
          metric           last   best  epoch
          eval_loss_epoch  0.25  0.125      3
    """
    rows = [(metric.name, _number(metric.last), _number(metric.best), _number(metric.best_epoch)) for metric in metrics]
    if not rows:
        return ""
    rows.insert(0, ("metric", "last", "best", "epoch"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  "
        + "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
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


def _summary(name: str, records: list[tuple[float, int]], higher: bool | None) -> MetricSummary:
    last = records[-1][0]
    if higher is None:
        return MetricSummary(name, last, None, None)
    best = BestMetric(greater_is_better=higher)
    for value, epoch in records:
        best.update(value, epoch)
    return MetricSummary(name, last, best.value, best.epoch or None)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def describe_trained(models: Mapping[str, nn.Module], optimizers: Iterable[Optimizer]) -> str:
    """Return how many parameters are trained, how many are frozen, and which are neither, as no optimizer has them.

    Models of which no optimizer has any parameter are left out. Parameters whose sizes are not known yet are counted
    apart, and what several models share once.

    Args:
        models: The models, by name.
        optimizers: Their optimizers.

    Returns:
        The end of a sentence; empty where nothing can be counted.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2), nn.Linear(2, 1))
        >>> _ = model[0].requires_grad_(False)
        >>> describe_trained({"model": model}, [torch.optim.SGD(model[1].parameters())])
        '6 of 19 parameters (10 frozen); no optimizer has 2.weight and 2.bias (3, not frozen)'
    """
    held = {id(one) for optimizer in optimizers for one in parameters_of(optimizer)}
    names: dict[nn.Parameter, str] = {}
    for name, model in models.items():
        if not held.isdisjoint(map(id, model.parameters())):
            for inner, one in model.named_parameters():
                names.setdefault(one, inner if len(models) == 1 else f"{name}.{inner}")
    known = [one for one in names if not isinstance(one, UninitializedParameter)]
    frozen = sum(one.numel() for one in known if not one.requires_grad)
    left_out = {names[one]: one.numel() for one in known if one.requires_grad and id(one) not in held}
    total = sum(one.numel() for one in known)
    trained = total - frozen - sum(left_out.values())
    if total == 0:
        return ""
    unknown = len(names) - len(known)
    later = f", and {unknown} tensors of sizes that are not known yet" if unknown else ""
    if total == trained:
        return f"all {total:,} parameters{later}"
    words = f"{trained:,} of {total:,} parameters{later}"
    if frozen:
        words += f" ({frozen:,} frozen)"
    if left_out:
        shown, more = [*left_out][:_NUM_NAMES], len(left_out) - _NUM_NAMES
        named = " and ".join(shown) if more <= 0 else f"{', '.join(shown)} and {more} more"
        words += f"; no optimizer has {named} ({sum(left_out.values()):,}, not frozen)"
    return words
