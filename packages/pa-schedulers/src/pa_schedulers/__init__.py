"""Schedulers for any field of an optimizer's parameter groups, stepped once after each optimizer update.

The public names are those in ``__all__`` of ``pa_schedulers``.
"""

from __future__ import annotations

from pa_schedulers.cosine_scheduler import CosineLrScheduler
from pa_schedulers.rate_finder import LearningRateCurve, LearningRateLoss, find_learning_rate
from pa_schedulers.schedule_plot import ScheduleRow, SteppedAlone, plot_schedule
from pa_schedulers.scheduler_base import SchedulerBase, StatefulSchedulerBase
from pa_schedulers.wsd_checkpoints import WSDCheckpointCallback
from pa_schedulers.wsd_scheduler import DecayInfo, PhaseInfo, WSDLrScheduler

__all__ = [
    "CosineLrScheduler",
    "DecayInfo",
    "LearningRateCurve",
    "LearningRateLoss",
    "PhaseInfo",
    "ScheduleRow",
    "SchedulerBase",
    "StatefulSchedulerBase",
    "SteppedAlone",
    "WSDCheckpointCallback",
    "WSDLrScheduler",
    "find_learning_rate",
    "plot_schedule",
]
