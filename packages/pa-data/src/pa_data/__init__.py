"""Data loaders that resume in the middle of an epoch, on any number of processes, and the orders of their samples.

The public names are those in ``__all__`` of ``pa_data``, ``pa_data.batches``, ``pa_data.errors``, ``pa_data.files``,
``pa_data.orders``, ``pa_data.rng`` and ``pa_data.script_state``.
"""

from __future__ import annotations

from pa_data._fetching import BatchRequest, SupportsFetchBatch, is_in_memory, map_tensors, move_to_device
from pa_data._keyed_loader import KeyedDataLoader, count_samples
from pa_data._loader_parts import loader_parts, set_epoch
from pa_data._requested_loader import BatchRequests, LoadingOptions, RequestedDataLoader
from pa_data._split import BatchSplit, EvalSplit, Split, UpdateSplit
from pa_data._workers import start_method, worker_init_fn

__all__ = [
    "BatchRequest",
    "BatchRequests",
    "BatchSplit",
    "EvalSplit",
    "KeyedDataLoader",
    "LoadingOptions",
    "RequestedDataLoader",
    "Split",
    "SupportsFetchBatch",
    "UpdateSplit",
    "count_samples",
    "is_in_memory",
    "loader_parts",
    "map_tensors",
    "move_to_device",
    "set_epoch",
    "start_method",
    "worker_init_fn",
]
