"""Captures and restores the states of torchmetrics metrics, and computes the metrics over all processes."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor

from pa_core import gather_objects
from pa_core.distributed import num_processes

if TYPE_CHECKING:
    from torchmetrics import Metric, MetricCollection


MetricStates: TypeAlias = dict[str, dict[str, Any]]
"""For each metric by its path: the number of its updates, and its states on the CPU."""


def take_out(metrics: MetricCollection) -> MetricStates:
    """Return a copy of the states that the metrics of this process have accumulated.

    Example:
        >>> from torchmetrics import MetricCollection
        >>> from torchmetrics.aggregation import SumMetric
        >>> metrics = MetricCollection({"total": SumMetric()})
        >>> metrics.update(3.0)
        >>> states = take_out(metrics)
        >>> states
        {'total': {'updates': 1, 'states': {'sum_value': tensor(3.)}}}
        >>> metrics.reset()
        >>> put_back(metrics, states)
        >>> metrics.compute()
        {'total': tensor(3.)}
    """
    return {
        path: {
            "updates": metric.update_count,
            "states": {name: _copied(state, torch.device("cpu")) for name, state in metric.metric_state.items()},
        }
        for path, metric in _walk(metrics)
    }


def fits(metrics: MetricCollection, taken: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the states belong to metrics like these."""
    of_metrics = {path: metric.metric_state.keys() for path, metric in _walk(metrics)}
    return of_metrics == {path: copied["states"].keys() for path, copied in taken.items()}


def put_back(metrics: MetricCollection, taken: Mapping[str, Mapping[str, Any]]) -> None:
    """Restore the states that ``take_out`` returned, which must fit the metrics."""
    for path, metric in _walk(metrics):
        _set(metric, taken[path]["states"], taken[path]["updates"])


def has_samples(taken: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the metrics had been updated when their states were taken out."""
    # A metric that wraps another may count differently; ClasswiseWrapper counts from 1.
    innermost = [path for path in taken if not any(other.startswith(f"{path}.") for other in taken)]
    return any(taken[path]["updates"] for path in innermost)


def compute_over_processes(metrics: MetricCollection, earlier: Sequence[MetricStates] = ()) -> dict[str, Any]:
    """Compute the metrics over the samples of all processes; every process must call this.

    Usually torchmetrics does this by itself. It exchanges the states one by one and, for some metrics, also the entries
    of a list one by one. This fails if a process had fewer batches or entries than another, because the process would
    then wait or send data that the others cannot read. Torchmetrics also leaves out entries that are not tensors. In
    these cases, all states are exchanged together here, and reduced as torchmetrics would reduce them.

    Args:
        metrics: The metrics of this process.
        earlier: States to include, identical on every process: those that the processes of an interrupted run had
            accumulated.
    """
    if not earlier and (num_processes() == 1 or _can_be_exchanged_one_by_one(metrics)):
        return metrics.compute()
    of_processes = [*earlier, *gather_objects(take_out(metrics))]
    merged = copy.deepcopy(metrics)
    _merge(merged, [states for states in of_processes if has_samples(states)])
    return merged.compute()


def _can_be_exchanged_one_by_one(metrics: MetricCollection) -> bool:
    """Whether torchmetrics itself can exchange states like these; every process must call this."""
    kinds = [
        (metric.update_count, [_kinds_of_entries(state) for state in metric.metric_state.values()])
        for _, metric in _walk(metrics)
    ]
    # A list may have an entry for each sample, so the processes exchange only a digest of it.
    own = hashlib.sha256(repr(kinds).encode()).digest()
    has_tensors_alone = not any("object" in entries for _, states in kinds for entries in states)
    return all(other == (own, True) for other in gather_objects((own, has_tensors_alone)))


def _kinds_of_entries(state: object) -> list[str]:
    entries = cast("list[object]", state) if isinstance(state, list) else []
    return [f"{entry.dtype} {entry.dim()}" if isinstance(entry, Tensor) else "object" for entry in entries]


def keep_apart(metrics: MetricCollection) -> None:
    """Make a collection update each of its metrics, unless the script defines which metrics share their states.

    By default, torchmetrics lets metrics share their states if these are equal after the first update.

    Args:
        metrics: The metrics. Collections nested in them are changed too.
    """
    from torchmetrics import MetricCollection

    for module in metrics.modules():
        if isinstance(module, MetricCollection) and module._enable_compute_groups is True:  # pyright: ignore[reportPrivateUsage]  # only the constructor sets it publicly
            module._enable_compute_groups = False  # pyright: ignore[reportPrivateUsage]  # the same
            module._groups_checked = False  # pyright: ignore[reportPrivateUsage]  # the same
            module._init_compute_groups()  # pyright: ignore[reportPrivateUsage]  # the same


def _merge(metrics: MetricCollection, parts: Sequence[MetricStates]) -> None:
    """Give each metric the combined states of several processes, and keep it from exchanging them again."""
    for path, metric in _walk(metrics):
        reductions = cast("dict[str, Callable[[Any], Any] | None]", metric._reductions)  # pyright: ignore[reportPrivateUsage]  # no public way
        states = {
            name: _reduced([part[path]["states"][name] for part in parts], reduction)
            for name, reduction in reductions.items()
        }
        _set(metric, states, sum(part[path]["updates"] for part in parts))
        metric.distributed_available_fn = _is_not_distributed


def _reduced(parts: list[Any], reduction: Callable[[Any], Any] | None) -> Any:
    """Combine the states of several processes: lists are concatenated, tensors are stacked."""
    together: Any = [item for part in parts for item in part] if isinstance(parts[0], list) else torch.stack(parts)
    return together if reduction is None or len(together) == 0 else reduction(together)


def _is_not_distributed() -> bool:
    return False


def _set(metric: Metric, states: Mapping[str, Any], updates: int) -> None:
    for name, state in states.items():
        setattr(metric, name, _copied(state, metric.device))
    metric._update_count = updates  # pyright: ignore[reportPrivateUsage]  # no public way
    metric._computed = None  # pyright: ignore[reportPrivateUsage]  # it was computed from other states


def _copied(state: object, device: torch.device) -> Any:
    """Return a tensor, or the content of a list, on another device and in separate memory."""
    if isinstance(state, Tensor):
        return state.detach().to(device, copy=True)
    if isinstance(state, list | tuple):
        items = [_copied(item, device) for item in cast("Iterable[object]", state)]
        return items if isinstance(state, list) else tuple(items)
    return copy.deepcopy(state)


def _walk(metrics: MetricCollection) -> Iterator[tuple[str, Metric]]:
    """Yield each metric with its path, including wrapped metrics."""
    from torchmetrics import Metric

    modules = cast("Iterator[tuple[str, torch.nn.Module]]", metrics.named_modules())
    for path, module in modules:
        if isinstance(module, Metric):
            yield path, module
