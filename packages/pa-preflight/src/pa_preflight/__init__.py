"""Finds the mistakes of a training script before the run: ``check(trainer, ...)`` with the arguments of ``train()``.

Public are the names in ``__all__`` of ``pa_preflight``.
"""

from __future__ import annotations

from pa_preflight._check import check
from pa_preflight._findings import Finding, Report

__all__ = ["Finding", "Report", "check"]
