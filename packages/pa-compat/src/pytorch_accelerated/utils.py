"""What scripts know as the utilities of the trainer."""

from __future__ import annotations

from pa_callbacks_extra import ModelEma
from pa_core import (
    DataLoaderSlice,
    LimitBatches,
    local_process_zero_first,
    local_process_zero_only,
    world_process_zero_only,
)

__all__ = [
    "DataLoaderSlice",
    "LimitBatches",
    "ModelEma",
    "local_process_zero_first",
    "local_process_zero_only",
    "world_process_zero_only",
]
