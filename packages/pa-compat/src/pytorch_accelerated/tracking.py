"""The recording of metrics, under the path that scripts know."""

from __future__ import annotations

from pa_core import InMemoryRunHistory, LossTracker, RunHistory

__all__ = ["InMemoryRunHistory", "LossTracker", "RunHistory"]
