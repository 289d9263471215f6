"""Signals that announce the end of a machine's time."""

from __future__ import annotations

import atexit
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType
from typing import Any, Self


class SignalWatch:
    """For the time of a run, calls a function when one of some signals arrives, instead of what Python does with it.

    The function is called between two instructions of the main thread, wherever that is: it should do no more than
    set a flag. Processes that are forked while the watch is on, such as the workers of a loader, no longer die of the
    signal either, which is right when it is sent to all of them: the main process ends them.

    Where no signal came, signals do again what they did before as soon as the watch ends. Otherwise the process is
    about to end by its own status, and no further signal may end it before: they change nothing until it has ended. A
    script that catches ``ends_by`` and continues gets its signals back once it lets go of the exception. A signal that
    came too late for its run counts for the next one that watches for it.

    Args:
        signals: Signals or their names, such as ``"SIGTERM"``.
        on_signal: Called without arguments.
        ends_by: The exception by which a run ends that has acted on a signal, of a class that is written in Python.

    Attributes:
        received: The signal that came last; None before the first.

    Raises:
        ValueError: There is no such signal on this system.

    Example:
        >>> import os, signal
        >>> with SignalWatch(["SIGUSR1"], lambda: print("saving and leaving")) as watch:
        ...     os.kill(os.getpid(), signal.SIGUSR1)
        ...     watch.settle()
        saving and leaving
    """

    def __init__(
        self,
        signals: Iterable[str | int],
        on_signal: Callable[[], None],
        *,
        ends_by: type[BaseException] | tuple[()] = (),
    ) -> None:
        self._signals = [_signal(one) for one in signals]
        self._listeners = [on_signal]
        self._ends_by = ends_by
        self._before: dict[signal.Signals, Any] = {}
        self.received: signal.Signals | None = None
        self._has_come = False
        self._has_ended = False
        self._preemption: weakref.ref[BaseException] | None = None

    def __enter__(self) -> Self:
        """Begin to watch.

        Raises:
            ValueError: This is not the main thread, to which Python brings all signals.
        """
        if self._signals and threading.current_thread() is not threading.main_thread():
            raise ValueError(
                f"Signals cannot be watched from the thread {threading.current_thread().name!r}. Enter the watch in "
                "the main thread, to which Python brings them."
            )
        for one in self._signals:
            self._watch(one)
        if self._has_come:
            self._tell()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop watching, now or, if a signal has come, when the process has ended."""
        self._has_ended = True
        self._listeners.clear()
        if isinstance(exception, self._ends_by):
            self._has_come = False  # it has been acted on
            self._preemption = weakref.ref(exception, self._on_preemption_gone)
        elif not self._has_come:
            self._give_back()
            return
        # Python stops calling handlers before it has ended, and lets signals end the process from then on.
        atexit.register(self._ignore)

    def settle(self) -> None:
        """Note that a signal was acted on, though the script continues; it gets its signals back at the end."""
        self._has_come = False

    def _watch(self, one: signal.Signals) -> None:
        handler = signal.getsignal(one)
        other = getattr(handler, "__self__", None)
        if not isinstance(other, SignalWatch):
            self._before[one] = handler
        elif other._has_ended:  # it waits for the end of the process, which goes on instead
            # Unless the garbage collector has let it give the signal back since.
            self._before[one] = other._before.pop(one) if one in other._before else signal.getsignal(one)
            self._has_come |= other._has_come
        else:  # of another callback
            other._listeners.extend(self._listeners)
            return
        signal.signal(one, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self._has_come = True
        self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    def _on_preemption_gone(self, _reference: object) -> None:
        """The script has handled the exception; or, if none of its functions is being called, has ended by it."""
        is_in_script = sys._getframe().f_back is not None  # pyright: ignore[reportPrivateUsage]  # documented
        if is_in_script and threading.current_thread() is threading.main_thread():
            self._give_back()

    def _give_back(self) -> None:
        atexit.unregister(self._ignore)
        for one, handler in self._before.items():
            if signal.getsignal(one) == self._handle:  # the script may have set another one meanwhile
                signal.signal(one, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _ignore(self) -> None:
        for one in self._before:
            signal.signal(one, signal.SIG_IGN)


def _signal(given: str | int) -> signal.Signals:
    try:
        return signal.Signals[given] if isinstance(given, str) else signal.Signals(given)
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"There is no signal {given!r} on this system. Pass one of signal.Signals or its name, such as 'SIGTERM'."
        ) from error
