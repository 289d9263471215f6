"""The schedulers and their base classes, under the path that scripts know."""

from __future__ import annotations

from pa_schedulers import CosineLrScheduler, SchedulerBase, StatefulSchedulerBase, WSDLrScheduler

__all__ = ["CosineLrScheduler", "SchedulerBase", "StatefulSchedulerBase", "WSDLrScheduler"]
