"""A training loop of the user's own, on the parts that the trainer stands on."""

from __future__ import annotations

from pa_core.own_loop.run import Run
from pa_core.own_loop.update import Update

__all__ = ["Run", "Update"]
