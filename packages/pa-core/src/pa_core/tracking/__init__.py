"""The metrics of a run with the positions at which they were recorded, and the mean loss of an epoch."""

from __future__ import annotations

from pa_core.tracking.epoch_means import ExactLossTracker, LossTracker, StepMeans
from pa_core.tracking.metric_values import MetricValue
from pa_core.tracking.run_history import InMemoryRunHistory, MetricRecord, RunClock, RunHistory

__all__ = [
    "ExactLossTracker",
    "InMemoryRunHistory",
    "LossTracker",
    "MetricRecord",
    "MetricValue",
    "RunClock",
    "RunHistory",
    "StepMeans",
]
