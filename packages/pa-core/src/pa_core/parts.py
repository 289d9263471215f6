"""Parts of pa_data for the loaders of trials."""

from __future__ import annotations

from pa_data._fetching import (
    BatchFetcher,
    SampleFetcher,
    WholeBatchFetcher,
    WorkerDataset,
    can_fetch_batch,
    can_pin_memory,
    pin_memory,
    rebuilt_mapping,
    rebuilt_sequence,
)
from pa_data._workers import WorkerStart, explaining_failed_start, sigterm_held_back

__all__ = [
    "BatchFetcher",
    "SampleFetcher",
    "WholeBatchFetcher",
    "WorkerDataset",
    "WorkerStart",
    "can_fetch_batch",
    "can_pin_memory",
    "explaining_failed_start",
    "pin_memory",
    "rebuilt_mapping",
    "rebuilt_sequence",
    "sigterm_held_back",
]
