"""The free memory of the machine."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def free_memory() -> int | None:
    """Return the free memory of the machine or its container for each process, in bytes; None if unknown."""
    free: list[int] = []
    with suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):
        of_container = Path("/sys/fs/cgroup")
        limit, used = ((of_container / f"memory.{name}").read_text() for name in ("max", "current"))
        free.append(int(limit) - int(used))
    return min(free) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if free else None
