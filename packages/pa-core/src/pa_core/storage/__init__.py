"""What is on disk: files and training states that are either whole or absent, and nothing that runs code when read.

Each name stands for one of ``pa_checkpoint``, and is kept for scripts that use it.
"""

from __future__ import annotations

from pa_checkpoint import CheckpointInfo as StateRecord
from pa_checkpoint import Folder as StateFolder
from pa_checkpoint import Skipped, atomic_write
from pa_checkpoint._checkpoint import Checkpoint as State
from pa_checkpoint._checkpoint import read_checkpoint as read_state
from pa_checkpoint._folder import newest_valid

__all__ = [
    "Skipped",
    "State",
    "StateFolder",
    "StateRecord",
    "atomic_write",
    "newest_valid",
    "read_state",
]
