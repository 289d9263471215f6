"""The warmup-stable-decay schedule, under the path that scripts know."""

from __future__ import annotations

from pa_schedulers import WSDLrScheduler

__all__ = ["WSDLrScheduler"]
