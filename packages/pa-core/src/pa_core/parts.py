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
    store_of_processes,
)
from pa_core.callbacks.signal_watch import SignalWatch
from pa_core.checkpoint_loading import copy_weights
from pa_core.data.custom_loader import loader_parts, set_epoch
from pa_core.distributed.collectives import (
    broadcast_tensors,
    leave_processes_at_exit,
    runs_on_gloo,
)
from pa_core.distributed.comparison import Describe, agree_on_integer, require_same
from pa_core.distributed.failures import ending_process_unless_all_fail, showing_errors_once
from pa_core.distributed.hang_detector import HangDetector, Stage
from pa_core.distributed.processes import fork_between_collectives
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
from pa_core.progress import Progress
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

__all__ = [
    "BUFFERS",
    "CHILDREN",
    "COMPILED",
    "INPUT_CHECK",
    "PARAMETERS",
    "Describe",
    "Folder",
    "HangDetector",
    "Progress",
    "SavedModel",
    "SignalWatch",
    "Stage",
    "agree_on_integer",
    "broadcast_tensors",
    "capture_model",
    "copy_weights",
    "describe_arguments",
    "describe_hyperparameters",
    "describe_models",
    "describe_optimizers",
    "differences_of_weights",
    "ending_process_unless_all_fail",
    "ensure_plain",
    "file_writer_of",
    "find_damage",
    "foreach",
    "fork_between_collectives",
    "is_sharded",
    "is_sharded_module",
    "is_unscaled",
    "leave_processes_at_exit",
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
    "process_state",
    "require_same",
    "reshard",
    "restore_models",
    "runs_on_gloo",
    "set_epoch",
    "showing_errors_once",
    "split_like",
    "store_of_processes",
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
