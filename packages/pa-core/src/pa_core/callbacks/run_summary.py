"""The summary of the trained parameters at the start of a run, and the table of metrics at its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from pa_core._tensors import parameters_of
from pa_core.engine.best_metric import BestMetric, direction_in_name
from pa_core.tracking import RunHistory
from pa_core.tracking.run_history import values_with_epochs

_NUM_NAMES = 2


def format_table(history: RunHistory, greater_is_better: Mapping[str, bool]) -> str:
    """Format a table of the last and the best value of each numeric metric; empty without metrics.

    Args:
        history: The history; only an ``InMemoryRunHistory`` knows the epochs of values.
        greater_is_better: For metrics by name, whether a higher value is better. For all other metrics, the name
            decides.

    Example:
        >>> from pa_core import InMemoryRunHistory
        >>> history = InMemoryRunHistory()
        >>> for accuracy in (0.5, 0.75, 0.625):
        ...     history.update_metric("accuracy", accuracy)
        >>> print(format_table(history, {}))
          metric     last  best  epoch
          accuracy  0.625  0.75      1
    """
    rows = [("metric", "last", "best", "epoch")]
    for name in sorted(history.get_metric_names()):
        if values := values_with_epochs(history, name):
            best = BestMetric(greater_is_better.get(name, direction_in_name(name)) is True)
            if name in greater_is_better or direction_in_name(name) is not None:
                for value, epoch in values:
                    best.update(value, epoch)
            rows.append((name, _number(values[-1][0]), _number(best.value), _number(best.epoch or None)))
    if len(rows) == 1:
        return ""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
    return "\n".join("  " + "  ".join(row) for row in cells)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def trains_some_of(module: nn.Module, optimizers: Iterable[Optimizer]) -> bool:
    """Return whether an optimizer has some of the parameters of a module.

    Args:
        module: The module.
        optimizers: The optimizers.
    """
    held = {id(parameter) for optimizer in optimizers for parameter in parameters_of(optimizer)}
    return not held.isdisjoint(map(id, module.parameters()))


def describe_trained(models: Mapping[str, nn.Module], optimizers: Iterable[Optimizer]) -> str:
    """Describe how many parameters are trained and how many are frozen, and name those that are neither.

    Models without parameters in an optimizer are left out. Parameters whose sizes are not known yet are counted
    separately, and shared parameters are counted once.

    Args:
        models: The models, by name.
        optimizers: Their optimizers.

    Returns:
        The end of a sentence; empty if nothing can be counted.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2), nn.Linear(2, 1))
        >>> _ = model[0].requires_grad_(False)
        >>> describe_trained({"model": model}, [torch.optim.SGD(model[1].parameters())])
        '6 of 19 parameters (10 frozen); no optimizer has 2.weight and 2.bias (3, not frozen)'
    """
    optimizers = [*optimizers]
    held = {id(parameter) for optimizer in optimizers for parameter in parameters_of(optimizer)}
    names: dict[nn.Parameter, str] = {}
    for name, model in models.items():
        if trains_some_of(model, optimizers):
            for inner, parameter in model.named_parameters():
                names.setdefault(parameter, inner if len(models) == 1 else f"{name}.{inner}")
    known = [parameter for parameter in names if not isinstance(parameter, UninitializedParameter)]
    frozen = sum(parameter.numel() for parameter in known if not parameter.requires_grad)
    left_out = {names[weight]: weight.numel() for weight in known if weight.requires_grad and id(weight) not in held}
    total = sum(parameter.numel() for parameter in known)
    trained, unknown = total - frozen - sum(left_out.values()), len(names) - len(known)
    if total == 0:
        return ""
    words = f"all {total:,} parameters" if total == trained else f"{trained:,} of {total:,} parameters"
    if unknown:
        words += f", and {unknown} tensors of sizes that are not known yet"
    if frozen:
        words += f" ({frozen:,} frozen)"
    if left_out:
        shown, more = [*left_out][:_NUM_NAMES], len(left_out) - _NUM_NAMES
        named = " and ".join(shown) if more <= 0 else f"{', '.join(shown)} and {more} more"
        words += f"; no optimizer has {named} ({sum(left_out.values()):,}, not frozen)"
    return words
