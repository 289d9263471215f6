"""When the start of a process has come how far, by the clock and by its processor time."""

from __future__ import annotations

import json
import time
from pathlib import Path

__all__ = ["PROCESS", "Moments", "read_moments"]

PROCESS = "process"
"""The file in the folder of a run that has the id of its process."""


class Moments:
    """Notes down moments in the order in which they come."""

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
