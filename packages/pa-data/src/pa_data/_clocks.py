"""Readings of clocks, which mean nothing in another process or at another moment."""

from __future__ import annotations

import time
from collections.abc import Iterable

__all__ = ["read_clocks", "was_read_since"]


def read_clocks() -> tuple[float, ...]:
    """Return what the clocks of this process say."""
    return time.time(), time.monotonic(), time.perf_counter(), time.process_time()


def was_read_since(clocks: Iterable[float], value: object) -> bool:
    """Return whether a value is what a clock has said between an earlier moment and now.

    Args:
        clocks: What the clocks said at that moment.
        value: Any value.

    Example:
        >>> clocks = read_clocks()
        >>> was_read_since(clocks, time.time()), was_read_since(clocks, 0.5)
        (True, False)
    """
    return isinstance(value, float) and any(
        since <= value <= now for since, now in zip(clocks, read_clocks(), strict=True)
    )
