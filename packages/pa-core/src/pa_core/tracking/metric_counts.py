"""What was recorded since a moment: by how many values each metric had then."""

from __future__ import annotations

from collections.abc import Mapping

from pa_core.tracking.metric_values import as_number
from pa_core.tracking.run_history import RunHistory

__all__ = ["count_metrics", "numbers_since"]


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
