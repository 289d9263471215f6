"""The utilities of the trainer, under the names that scripts know."""

from __future__ import annotations

from pa_callbacks_extra import ModelEma
from pa_core import LimitBatches, local_process_zero_first, local_process_zero_only, world_process_zero_only
from pa_core.data import DataLoaderSlice, remove_padding
from pa_data import worker_init_fn

__all__ = [
    "DataLoaderSlice",
    "LimitBatches",
    "ModelEma",
    "local_process_zero_first",
    "local_process_zero_only",
    "remove_padding",
    "worker_init_fn",
    "world_process_zero_only",
]
