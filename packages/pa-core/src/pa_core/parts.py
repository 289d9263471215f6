"""Parts of the engine for training loops that other distributions bring: what does not need a ``Trainer`` or a ``Run``.

Most people need ``Trainer`` or ``Run`` instead. A loop that is built of these parts has to call them in the right order
itself; ``pa_trial`` shows how.
"""

from __future__ import annotations

import warnings

from pa_checkpoint import Folder
from pa_core._accelerate import process_state
from pa_core._torch import (
    BUFFERS,
    CHILDREN,
    COMPILED,
    INPUT_CHECK,
    PARAMETERS,
    file_writer_of,
    foreach,
    is_unscaled,
    non_persistent_buffers,
)
from pa_core.checkpoint_loading import copy_weights
from pa_core.data.custom_loader import loader_parts, set_epoch
from pa_core.distributed.collectives import broadcast_tensors
from pa_core.incompatible_state import misfit_of_optimizer, misfit_of_scheduler, without_foreign_entries
from pa_core.load_with_rollback import load_state as load_optimizer_state
from pa_core.model_tensors import (
    differences_of_weights,
    is_sharded,
    is_sharded_module,
    list_differences,
    local_piece,
    local_pieces,
    parameters_of,
    reshard,
)
from pa_core.progress import Progress, Stage
from pa_core.rank_checks import (
    describe_arguments,
    describe_hyperparameters,
    describe_models,
    describe_optimizers,
)
from pa_core.run_lifecycle import nothing_kept_of_runs
from pa_core.sharding.sharded_states import split_like
from pa_core.storage.plain_values import ensure_plain
from pa_core.storage.torch_file import find_damage
from pa_core.training_state.model_state import SavedModel, capture_model, restore_models
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
    "CHILDREN",
    "COMPILED",
    "INPUT_CHECK",
    "PARAMETERS",
    "BatchFetcher",
    "Folder",
    "Progress",
    "SampleFetcher",
    "SavedModel",
    "Stage",
    "WholeBatchFetcher",
    "WorkerDataset",
    "WorkerStart",
    "broadcast_tensors",
    "can_fetch_batch",
    "can_pin_memory",
    "capture_model",
    "copy_weights",
    "describe_arguments",
    "describe_hyperparameters",
    "describe_models",
    "describe_optimizers",
    "differences_of_weights",
    "ensure_plain",
    "explaining_failed_start",
    "file_writer_of",
    "find_damage",
    "foreach",
    "is_sharded",
    "is_sharded_module",
    "is_unscaled",
    "list_differences",
    "load_optimizer_state",
    "loader_parts",
    "local_piece",
    "local_pieces",
    "misfit_of_optimizer",
    "misfit_of_scheduler",
    "non_persistent_buffers",
    "nothing_kept_of_runs",
    "parameters_of",
    "pin_memory",
    "process_state",
    "rebuilt_mapping",
    "rebuilt_sequence",
    "reshard",
    "restore_models",
    "set_epoch",
    "sigterm_held_back",
    "split_like",
    "warn_user",
    "without_foreign_entries",
]

_RENAMED = {"Place": "Stage", "require_alike": "require_same"}


def __getattr__(name: str) -> object:
    """Return what had another name before."""
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{name} is called {_RENAMED[name]} now.", DeprecationWarning, stacklevel=2)
    return globals()[_RENAMED[name]]
