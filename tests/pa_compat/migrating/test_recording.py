"""What the pages on differences from the original say of recorded metrics: a test for each row."""

from __future__ import annotations

import pytest

from pa_core import ConfigurationError
from pytorch_accelerated.tracking import InMemoryRunHistory


def test_entries() -> None:
    """What was recorded is read back, and each number in it is a metric that can be watched and drawn."""
    history = InMemoryRunHistory()
    history.update_metric("test", {"accuracy": 0.75, "worst": "cat"})
    assert history.get_latest_metric("test") == {"accuracy": 0.75, "worst": "cat"}
    assert history.get_metric_values("test_accuracy") == [0.75]
    assert set(history.get_metric_names()) == {"test", "test_accuracy"}


def test_not_plain() -> None:
    """An object is refused where it is recorded, not when a training state is saved."""
    history = InMemoryRunHistory()
    with pytest.raises(ConfigurationError, match="metric 'test' cannot be recorded"):
        history.update_metric("test", object())
