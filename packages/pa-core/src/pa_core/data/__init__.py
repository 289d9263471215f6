"""Data loading: keyed orders, exact splits, and loaders that start anywhere; usable without a trainer."""

from __future__ import annotations

from pa_core.data.batch_limit import DataLoaderSlice
from pa_core.data.evaluation_sets import EvaluationSet
from pa_core.distributed.collectives import remove_padding
from pa_data import (
    BatchSplit,
    EvalSplit,
    KeyedDataLoader,
    Split,
    SupportsFetchBatch,
    UpdateSplit,
    move_to_device,
    worker_init_fn,
)
from pa_data.orders import EpochOrder, epoch_order

__all__ = [
    "BatchSplit",
    "DataLoaderSlice",
    "EpochOrder",
    "EvalSplit",
    "EvaluationSet",
    "KeyedDataLoader",
    "Split",
    "SupportsFetchBatch",
    "UpdateSplit",
    "epoch_order",
    "move_to_device",
    "remove_padding",
    "worker_init_fn",
]
