"""Parts of the engine for training loops that other distributions bring: what does not need a ``Trainer`` or a ``Run``.

Most people need ``Trainer`` or ``Run`` instead. A loop that is built of these parts has to call them in the right order
itself; ``pa_trial`` shows how.
"""

from __future__ import annotations

import warnings

from pa_core._accelerate import process_state
from pa_core._torch import (
    BUFFERS,
    COMPILED,
    file_writer_of,
    foreach,
    is_unscaled,
)
from pa_core.data.custom_loader import loader_parts, set_epoch
from pa_core.distributed.collectives import broadcast_tensors
from pa_core.model_tensors import (
    parameters_of,
)
from pa_core.progress import Stage
from pa_core.rank_checks import (
    describe_arguments,
    describe_hyperparameters,
    describe_models,
    describe_optimizers,
)
from pa_core.user_warnings import warn_user
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
    "BUFFERS",
    "COMPILED",
    "BatchFetcher",
    "SampleFetcher",
    "Stage",
    "WholeBatchFetcher",
    "WorkerDataset",
    "WorkerStart",
    "broadcast_tensors",
    "can_fetch_batch",
    "can_pin_memory",
    "describe_arguments",
    "describe_hyperparameters",
    "describe_models",
    "describe_optimizers",
    "explaining_failed_start",
    "file_writer_of",
    "foreach",
    "is_unscaled",
    "loader_parts",
    "parameters_of",
    "pin_memory",
    "process_state",
    "rebuilt_mapping",
    "rebuilt_sequence",
    "set_epoch",
    "sigterm_held_back",
    "warn_user",
]

_RENAMED = {"Place": "Stage", "require_alike": "require_same"}


def __getattr__(name: str) -> object:
    """Return what had another name before."""
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{name} is called {_RENAMED[name]} now.", DeprecationWarning, stacklevel=2)
    return globals()[_RENAMED[name]]
