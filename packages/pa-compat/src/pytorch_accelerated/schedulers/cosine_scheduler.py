"""The cosine schedule, under the path that scripts know."""

from __future__ import annotations

from pa_schedulers import CosineLrScheduler

__all__ = ["CosineLrScheduler"]
