"""What a run has measured: metrics with the moment of their recording, and the mean loss of an epoch."""

from __future__ import annotations

from pa_core.tracking.clock import RunClock
from pa_core.tracking.in_memory import InMemoryRunHistory, MetricRecord
from pa_core.tracking.loss_tracker import LossTracker
from pa_core.tracking.metric_values import MetricValue
from pa_core.tracking.run_history import RunHistory
from pa_core.tracking.step_means import StepMeans

__all__ = [
    "InMemoryRunHistory",
    "LossTracker",
    "MetricRecord",
    "MetricValue",
    "RunClock",
    "RunHistory",
    "StepMeans",
]
