"""What was recorded since a moment, and what was recorded in all."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pa_core.tracking.metric_values import as_number
from pa_core.tracking.run_history import InMemoryRunHistory, RunHistory

__all__ = ["UpdatedMetrics", "count_metrics", "numbers_since", "values_with_epochs"]


def count_metrics(history: RunHistory) -> dict[str, int]:
    """Return how many values each metric has, by name."""
    return {name: history.count_metric_values(name) for name in history.get_metric_names()}


def numbers_since(counts: Mapping[str, int], history: RunHistory) -> dict[str, float]:
    """Return the latest values, of those that are numbers, of metrics that have more values than they had.

    Args:
        counts: What ``count_metrics`` returned then.
        history: The history.

    Example:
        >>> from pa_core import InMemoryRunHistory
        >>> history = InMemoryRunHistory()
        >>> history.update_metric("accuracy", 0.5)
        >>> counts = count_metrics(history)
        >>> history.update_metric("evaluation_loss", 0.25)
        >>> numbers_since(counts, history)
        {'evaluation_loss': 0.25}
    """
    new = sorted(name for name, count in count_metrics(history).items() if count > counts.get(name, 0))
    numbers = {name: as_number(history.get_latest_metric(name)) for name in new}
    return {name: number for name, number in numbers.items() if number is not None}


class UpdatedMetrics:
    """Which metrics were updated since they were taken last, or since this was made.

    Args:
        history: The history.
    """

    def __init__(self, history: RunHistory) -> None:
        self._counts = count_metrics(history)

    def take(self, history: RunHistory, wanted: Callable[[str], bool]) -> dict[str, float]:
        """Return the latest values of the wanted metrics, by name, and are numbers."""
        counts = count_metrics(history)
        updated = {name: n for name, n in counts.items() if n != self._counts.get(name, 0) and wanted(name)}
        self._counts.update(updated)
        numbers = {name: as_number(history.get_latest_metric(name)) for name in updated}
        return {name: number for name, number in numbers.items() if number is not None}


def values_with_epochs(history: RunHistory, metric_name: str) -> list[tuple[float, int]]:
    """Return the numbers of a metric with their epochs, which are 0 where the history does not know them."""
    if isinstance(history, InMemoryRunHistory):
        return [(record.value, record.epoch) for record in history.records(metric_name)]
    numbers = map(as_number, history.get_metric_values(metric_name))
    return [(number, 0) for number in numbers if number is not None]
