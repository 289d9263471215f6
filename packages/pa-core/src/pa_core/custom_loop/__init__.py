"""Custom training loops, on the same engine as the trainer."""

from __future__ import annotations

from pa_core.custom_loop.run import Run
from pa_core.custom_loop.update import Update

__all__ = ["Run", "Update"]
