"""Schedulers for any field of an optimizer's parameter groups, stepped once after each optimizer update."""

from __future__ import annotations

from pa_schedulers.cosine_scheduler import CosineLrScheduler
from pa_schedulers.scheduler_base import SchedulerBase, StatefulSchedulerBase

__all__ = ["CosineLrScheduler", "SchedulerBase", "StatefulSchedulerBase"]
