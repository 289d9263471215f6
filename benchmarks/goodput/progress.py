"""How far a process has come: in its start, by the clock and by its processor time, and in its training."""

from __future__ import annotations

import json
import mmap
import struct
import time
from pathlib import Path
from typing import NamedTuple

__all__ = ["PROCESS", "Moments", "Progress", "ProgressFile", "read_moments"]

PROCESS = "process"
"""The file in the folder of a run that has the id of its process."""
_LAYOUT = struct.Struct("qdqdd")


class Moments:
    """Notes down moments of a start in the order in which they come."""

    def __init__(self) -> None:
        self._noted: dict[str, tuple[float, float]] = {}

    def note(self, name: str) -> None:
        """Note down that the part of this name is over."""
        self._noted[name] = time.monotonic(), time.process_time()

    def write(self, path: Path) -> None:
        """Write the moments down."""
        path.write_text(json.dumps(self._noted))


def read_moments(path: Path) -> dict[str, tuple[float, float]]:
    """Return moments that were written down: seconds of the clock, and of processor time."""
    noted: dict[str, tuple[float, float]] = json.loads(path.read_text())
    return noted


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
