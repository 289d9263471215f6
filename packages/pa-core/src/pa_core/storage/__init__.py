"""What is on disk: files and training states that are either whole or absent, and nothing that runs code when read.

Usable without a trainer. A training state is a directory, described in ``docs/maintainers/training-state-format.md``.
"""

from __future__ import annotations

from pa_core.storage.atomic_file import atomic_write
from pa_core.storage.state import State, read_state
from pa_core.storage.state_folder import Skipped, StateFolder, StateRecord, newest_valid

__all__ = [
    "Skipped",
    "State",
    "StateFolder",
    "StateRecord",
    "atomic_write",
    "newest_valid",
    "read_state",
]
