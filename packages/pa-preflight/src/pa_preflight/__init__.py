"""Finds mistakes in a training script before the run, and predicts its updates, memory and time.

``check(trainer, ...)`` and ``plan(trainer, ...)`` take the arguments of ``train()``.

The public names are those in ``__all__`` of ``pa_preflight``.
"""

from __future__ import annotations

from pa_preflight._check import check, checked
from pa_preflight._findings import Finding, Report
from pa_preflight._plan import plan
from pa_preflight._plan_records import Plan

__all__ = ["Finding", "Plan", "Report", "check", "checked", "plan"]
