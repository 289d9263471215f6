"""A clock for the processor time of a thread, because a thread that uses almost none is waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_SHARE_OF_AN_IDLE_THREAD: Final = 0.05


class ThreadClock:
    """Measures from a different thread how long the thread that creates it has been waiting.

    Only Linux shows the processor time of a thread. On other systems the thread always seems busy.

    Attributes:
        blocked_since: The ``time.monotonic()`` since which the thread has not run at all, which is impossible for a
            thread in a loop.
        idle_since: The ``time.monotonic()`` since which the thread has used hardly any time, for example in a loop that
            checks repeatedly whether it may continue.
    """

    def __init__(self) -> None:
        find: Callable[[int], int] | None = getattr(time, "pthread_getcpuclockid", None)
        self._clock: int | None = None if find is None else find(threading.get_ident())
        self._used = 0.0
        self._looked_at: float = time.monotonic()
        self.blocked_since: float = self._looked_at
        self.idle_since: float = self._looked_at

    def look(self) -> None:
        """Record how much time the thread has used since the last look."""
        now, last, before = time.monotonic(), self._looked_at, self._used
        self._looked_at = now
        if self._clock is not None:
            with suppress(OSError):  # the thread has ended
                self._used = time.clock_gettime(self._clock)
        if self._clock is None or self._used > before:
            self.blocked_since = now
        if self._clock is None or self._used - before > _SHARE_OF_AN_IDLE_THREAD * (now - last):
            self.idle_since = now
