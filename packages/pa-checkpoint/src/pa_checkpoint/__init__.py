"""Checkpoints for PyTorch that are written completely or not at all, and that are read without running code from them.

The public names are those in ``__all__`` of ``pa_checkpoint`` and ``pa_checkpoint.torch_states``.
"""

from __future__ import annotations

from pa_checkpoint._checkpoint import Checkpoint, load, verify
from pa_checkpoint._compare import ANY_PROCESSES, CLOCK, Difference, compare
from pa_checkpoint._errors import CheckpointError, CheckpointNotFoundError, ExplainedError, FolderInUseError
from pa_checkpoint._files import atomic_write
from pa_checkpoint._folder import CheckpointInfo, Folder, FolderLock, Skipped
from pa_checkpoint._remote_folder import RemoteFolder
from pa_checkpoint._sharded_tensor import StoredTensor
from pa_checkpoint._writer import Writer, save

__all__ = [
    "ANY_PROCESSES",
    "CLOCK",
    "Checkpoint",
    "CheckpointError",
    "CheckpointInfo",
    "CheckpointNotFoundError",
    "Difference",
    "ExplainedError",
    "Folder",
    "FolderInUseError",
    "FolderLock",
    "RemoteFolder",
    "Skipped",
    "StoredTensor",
    "Writer",
    "atomic_write",
    "compare",
    "load",
    "save",
    "verify",
]
