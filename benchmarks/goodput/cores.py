"""Whether the machine has anything else to do than what is measured on it."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["busy_share"]


def busy_share(seconds: float) -> float:
    """Return the share of all cores that is in use, by the figures of Linux, while this process waits."""
    busy, passed = _used()
    time.sleep(seconds)
    busy_later, passed_later = _used()
    return (busy_later - busy) / (passed_later - passed)


def _used() -> tuple[float, float]:
    """Seconds of all cores that were used, and all that there were, since the machine was started."""
    numbers = [int(number) for number in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    user, low_priority, system = numbers[:3]
    ticks = os.sysconf("SC_CLK_TCK")
    return (user + low_priority + system) / ticks, sum(numbers[:8]) / ticks
