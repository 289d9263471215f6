"""The warmup-stable-decay schedule and the checkpoints around its decays, under the path that scripts know."""

from __future__ import annotations

from pa_schedulers import WSDCheckpointCallback, WSDLrScheduler

__all__ = ["WSDCheckpointCallback", "WSDLrScheduler"]
