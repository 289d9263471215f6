"""The recording of metrics, under the path that scripts know."""

from __future__ import annotations

from pa_core import InMemoryRunHistory, RunHistory
from pa_core.tracking import LossTracker

__all__ = ["InMemoryRunHistory", "LossTracker", "RunHistory"]
