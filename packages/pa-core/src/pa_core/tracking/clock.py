"""How far a run has come, in updates, samples, epochs and seconds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

__all__ = ["RunClock"]


class RunClock:
    """How far a run has come, in each of the units that a metric can be plotted over.

    The trainer advances it; code that records a metric reads it. Time runs from the moment when the clock was made or
    last reset, without the spans between ``stop`` and ``start``.

    Attributes:
        epoch: The current epoch, counted from 1.
        update: Optimizer updates that are complete.
        samples: Training samples of all processes that went into them.

    Example:
        >>> clock = RunClock()
        >>> clock.update += 1
        >>> clock.samples += 32
        >>> clock
        RunClock(epoch=1, update=1, samples=32)
        >>> 0 <= clock.seconds < 60
        True
    """

    epoch: int
    update: int
    samples: int

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Go back to the beginning of a run, with the time running."""
        self.epoch, self.update, self.samples = 1, 0, 0
        self._seconds_before = 0.0
        self._started_at: float | None = time.monotonic()

    @property
    def seconds(self) -> float:
        """The seconds that have passed, on a clock that is never set back."""
        running = 0.0 if self._started_at is None else time.monotonic() - self._started_at
        return self._seconds_before + running

    def stop(self) -> None:
        """Let no more time pass; does nothing when stopped already."""
        self._seconds_before = self.seconds
        self._started_at = None

    def start(self) -> None:
        """Start or restart the clock; does nothing when it is running."""
        if self._started_at is None:
            self._started_at = time.monotonic()

    def state_dict(self) -> dict[str, float]:
        """Return the readings."""
        return {
            "epoch": self.epoch,
            "update": self.update,
            "samples": self.samples,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from the readings that ``state_dict`` returned; a clock that runs keeps running."""
        epoch, update, samples = (int(state_dict[unit]) for unit in ("epoch", "update", "samples"))
        self._seconds_before = float(state_dict["seconds"])
        self.epoch, self.update, self.samples = epoch, update, samples
        if self._started_at is not None:
            self._started_at = time.monotonic()

    @override
    def __repr__(self) -> str:
        return f"RunClock(epoch={self.epoch}, update={self.update}, samples={self.samples})"
