"""The schedulers, under the path that scripts know."""

from __future__ import annotations

from pa_schedulers import CosineLrScheduler, SchedulerBase, StatefulSchedulerBase

__all__ = ["CosineLrScheduler", "SchedulerBase", "StatefulSchedulerBase"]
