"""The base classes of schedulers, under the path that scripts know."""

from __future__ import annotations

from pa_schedulers import SchedulerBase, StatefulSchedulerBase

__all__ = ["SchedulerBase", "StatefulSchedulerBase"]
