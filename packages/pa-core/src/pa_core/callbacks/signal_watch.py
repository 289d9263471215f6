"""Signals that announce the end of a machine's time."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from pa_core.errors import ConfigurationError

__all__ = ["SignalWatch"]


class SignalWatch:
    """Calls a function when one of some signals arrives, instead of what Python does with it.

    The function is called between two instructions of the main thread, wherever that is: it should do no more than
    set a flag. Processes that are forked while the watch is on, such as the workers of a loader, no longer die of the
    signal either, which is right when it is sent to all of them: the main process ends them.

    Args:
        signals: Signals or their names, such as ``"SIGTERM"``.
        on_signal: Called without arguments.

    Raises:
        ConfigurationError: There is no such signal on this system.

    Example:
        >>> import os, signal
        >>> watch = SignalWatch(["SIGTERM"], lambda: print("saving and leaving"))
        >>> watch.start()
        >>> os.kill(os.getpid(), signal.SIGTERM)
        saving and leaving
        >>> watch.stop()
    """

    def __init__(self, signals: Iterable[str | int], on_signal: Callable[[], object]) -> None:
        self._signals = [_signal(one) for one in signals]
        self._on_signal = on_signal
        self._before: dict[signal.Signals, Any] = {}

    def start(self) -> None:
        """Begin to watch.

        Raises:
            ConfigurationError: This is not the main thread, to which Python brings all signals.
        """
        if self._signals and threading.current_thread() is not threading.main_thread():
            raise ConfigurationError(
                "Signals cannot be watched from here.",
                given=f"a run in the thread {threading.current_thread().name!r}",
                expected="a run in the main thread, to which Python brings all signals",
                do="Train in the main thread, or leave stop_on_signals out.",
            )
        for one in self._signals:
            self._before.setdefault(one, signal.signal(one, self._handle))

    def stop(self) -> None:
        """Have signals do again what they did before."""
        for one, handler in self._before.items():
            signal.signal(one, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self._on_signal()


def _signal(given: str | int) -> signal.Signals:
    try:
        return signal.Signals[given] if isinstance(given, str) else signal.Signals(given)
    except (KeyError, ValueError) as error:
        raise ConfigurationError(
            "There is no such signal on this system.",
            given=repr(given),
            expected="a signal or its name, such as 'SIGTERM'",
            do="See signal.Signals.",
        ) from error
