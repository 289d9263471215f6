"""The types of what a run records, and of the settings that it was started with."""

from __future__ import annotations

from collections.abc import Iterable, KeysView
from typing import Any, assert_type

import torch

from pa_core import InMemoryRunHistory, RunHistory
from pa_core.tracking import MetricRecord


def test_metrics_are_what_was_recorded() -> None:
    """Any plain value is recorded and given back; the history in memory is more exact about its containers."""

    def read(history: RunHistory) -> None:
        assert_type(history.get_metric_names(), Iterable[str])
        assert_type(history.get_metric_values("loss"), Iterable[Any])
        assert_type(history.get_latest_metric("loss"), Any)

    history = InMemoryRunHistory()
    history.update_metric("loss", torch.tensor(0.5))
    history.update_metric("test", {"f1": 0.5, "worst": "cat"})
    read(history)
    assert_type(history.get_metric_names(), KeysView[str])
    assert_type(history.get_metric_values("loss"), list[Any])
    assert_type(history.records("loss"), list[MetricRecord])
    assert history.records("loss")[0].value == 0.5
