"""What is on disk: files and training states that are either whole or absent, and nothing that runs code when read.

Each name stands for one of ``pa_checkpoint``, and is kept for scripts that use it.
"""

from __future__ import annotations

from pathlib import Path

from pa_checkpoint import Checkpoint as State
from pa_checkpoint import CheckpointInfo as StateRecord
from pa_checkpoint import Folder as StateFolder
from pa_checkpoint import Skipped, atomic_write
from pa_checkpoint import load as read_state

__all__ = [
    "Skipped",
    "State",
    "StateFolder",
    "StateRecord",
    "atomic_write",
    "newest_valid",
    "read_state",
]


def newest_valid(path: str | Path) -> tuple[State | None, list[Skipped]]:
    """Read the newest state that verifies completely.

    Args:
        path: One state, or a folder of states.

    Returns:
        The state, None where none is valid, and those that were skipped, newest first.

    Raises:
        CheckpointError: There is a file at the path, or a folder that cannot be read.
    """
    return StateFolder(path).newest_readable(read_state)
