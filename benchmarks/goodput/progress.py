"""How far a training process has come, in a few bytes that outlive it."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

__all__ = ["Progress", "ProgressFile"]

_LAYOUT = struct.Struct("qdqdd")


class Progress(NamedTuple):
    """What a process has trained; times are those of ``time.monotonic``, and 0 where there is no such update yet.

    Attributes:
        first_update: The number of its first update.
        first_time: When that was made.
        last_update: The number of its last update.
        last_time: When that was made.
        regained_time: When it made the first update that no process before it had made.
    """

    first_update: int = 0
    first_time: float = 0.0
    last_update: int = 0
    last_time: float = 0.0
    regained_time: float = 0.0


class ProgressFile:
    """A file that a process writes in each update, at the price of a write to memory; a kill loses nothing of it.

    Args:
        path: The file, made if it is missing.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_LAYOUT.size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _LAYOUT.size)

    def write(self, progress: Progress) -> None:
        """Note down how far the process has come."""
        _LAYOUT.pack_into(self._memory, 0, *progress)

    def read(self) -> Progress:
        """Return what was noted down last."""
        return Progress(*_LAYOUT.unpack_from(self._memory))
