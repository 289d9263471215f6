"""The last line of a run that is interrupted: when, why, and the newest training state."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple, Self


class SavedState(NamedTuple):
    """A training state of the run.

    Attributes:
        name: The name of its directory.
        update: The number of the update after which it was saved.
    """

    name: str
    update: int


def time_of_day() -> str:
    """Return the time of day, for the end of printed lines."""
    return time.strftime("%H:%M:%S")


def describe_interruption(what: str, update: int, newest: SavedState | None, do: str) -> str:
    """Return the last line of a run that is interrupted.

    Args:
        what: The cause, for example ``"Interrupted by Ctrl-C"``.
        update: The number of updates of the run.
        newest: The newest training state.
        do: The advice.

    Example:
        >>> describe_interruption("Interrupted by Ctrl-C", 14, SavedState("step_12", 12), "Go on.")[:75]
        'Interrupted by Ctrl-C after update 14. The newest training state is step_12'
    """
    lost = update if newest is None else update - newest.update
    updates = f"{lost:,} update{'' if lost == 1 else 's'}"
    state = "No training state is saved" if newest is None else f"The newest training state is {newest.name}"
    loss = "no update is lost" if lost == 0 else f"{updates} {'is' if lost == 1 else 'are'} lost"
    return f"{what} after update {update:,}. {state}: {loss}. {do} ({time_of_day()})"


class LastWords:
    """Prints a line when a signal ends the process within the context; the signal still ends the process as usual.

    Signals for which a script has a handler are not changed. The class has no effect in threads or with several
    processes. With several processes, ``SIGTERM`` may arrive while a process waits for the others, and must end the
    process at once.

    Args:
        number: The signal.
        describe: Returns the line.
    """

    def __init__(self, number: signal.Signals, describe: Callable[[], str]) -> None:
        self._number, self._describe = number, describe
        self._process = 0

    def __enter__(self) -> Self:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(self._number) is signal.SIG_DFL:
            self._process = os.getpid()
            signal.signal(self._number, self._end)
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._process and signal.getsignal(self._number) == self._end:
            signal.signal(self._number, signal.SIG_DFL)

    def _end(self, number: int, _frame: FrameType | None) -> Any:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() == self._process:  # not in a forked process
            # Past the buffers of Python, which the signal may have interrupted.
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"{self._describe()}\n".encode())
        os.kill(os.getpid(), number)
