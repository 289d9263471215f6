"""Recording under a prefix for the time of an evaluation."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from pa_core.tracking.run_history import RunHistory

__all__ = ["INTERMEDIATE_PREFIX", "recording_with_prefix"]

INTERMEDIATE_PREFIX = "intermediate_"
"""What is recorded in an evaluation within a training epoch has it, so that other names have one value an epoch."""


@contextmanager
def recording_with_prefix(history: RunHistory, prefix: str) -> Generator[None]:
    """Within the context, put a prefix before the names of metrics, after the one that is there already.

    Args:
        history: Where the metrics are recorded.
        prefix: What to put before their names.

    Example:
        >>> from pa_core.tracking import InMemoryRunHistory
        >>> history = InMemoryRunHistory()
        >>> with recording_with_prefix(history, INTERMEDIATE_PREFIX):
        ...     history.update_metric("eval_loss_epoch", 0.5)
        >>> list(history.get_metric_names())
        ['intermediate_eval_loss_epoch']
    """
    before = history.metric_name_prefix
    history.set_metric_name_prefix(before + prefix)
    try:
        yield
    finally:
        history.set_metric_name_prefix(before)
