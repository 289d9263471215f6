"""A watch for signals that a scheduler or a cloud sends before it takes a machine away."""

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
    """Calls a function when one of the given signals arrives while a ``with`` block runs.

    Schedulers such as Slurm, and clouds with spot machines, send a signal, usually ``SIGTERM``, some seconds before
    they end a process. Python would end the script at once. With this watch the script can finish its step and save a
    checkpoint first. Enter the block in the main thread, since Python runs all signal handlers there. On several
    processes, each process has its own watch; if the scheduler signals only some of them, let all processes agree in
    each step, for example with ``gather_objects``.

    Python calls the function between two instructions of the main thread, so it should only set a flag that the loop
    checks. Processes that are forked within the block, for example the workers of a data loader, do not end at the
    signal either; the main process ends them.

    If no signal arrives, the previous handlers are restored when the block ends. If a signal has arrived, the process
    is expected to end soon, and the watched signals are ignored until then, so that a second signal cannot interrupt
    the shutdown. Call ``settle`` if the script continues, or raise ``ends_by``: if a script catches this exception, the
    previous handlers are restored as soon as the script drops the exception. If a signal arrives too late for the loop,
    the next watch for the same signal calls its function at once.

    Args:
        signals: The signals to watch, as names such as ``"SIGTERM"``, as numbers, or as members of ``signal.Signals``.
        on_signal: The function to call at each signal, without arguments. Its result is ignored.
        ends_by: The class of the exception that your loop raises to end after a signal. It must be a class that is
            defined in Python, not a built-in class. The default, an empty tuple, means that no exception does so.

    Attributes:
        received: The last signal that has arrived, as a member of ``signal.Signals``, or None.

    Raises:
        ValueError: This system has no signal of this name or number. Entering the block raises it, too, if this is not
            the main thread.

    Example:
        >>> import os, signal
        >>> from pa_distributed import SignalWatch
        >>> requests = []
        >>> with SignalWatch(["SIGUSR1"], lambda: requests.append("save and leave")) as watch:
        ...     os.kill(os.getpid(), signal.SIGUSR1)  # sent by the scheduler
        ...     watch.settle()  # the script continues after the block
        >>> requests, watch.received.name
        (['save and leave'], 'SIGUSR1')
    """

    def __init__(
        self,
        signals: Iterable[str | int],
        on_signal: Callable[[], None],
        *,
        ends_by: type[BaseException] | tuple[()] = (),
    ) -> None:
        self._signals = [_signal(given) for given in signals]
        self._on_signal = on_signal
        self._told = [self]  # this watch, and those that have joined it
        self._ends_by = ends_by
        self._before: dict[signal.Signals, Any] = {}
        self.received: signal.Signals | None = None
        self._has_come = False
        self._has_ended = False
        self._preemption: weakref.ref[BaseException] | None = None

    def __enter__(self) -> Self:
        """Start watching the signals.

        Raises:
            ValueError: This is not the main thread. Python runs all signal handlers in the main thread.
        """
        if self._signals and threading.current_thread() is not threading.main_thread():
            raise ValueError(
                f"Signals cannot be watched from the thread {threading.current_thread().name!r}. Enter the watch in "
                "the main thread, to which Python brings them."
            )
        for watched in self._signals:
            self._watch(watched)
        if self._has_come:
            self._tell()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Restore the previous handlers, now or, after a signal, when the process ends."""
        self._has_ended = True
        self._told.clear()
        if isinstance(exception, self._ends_by):
            self._has_come = False  # it has been acted on
            self._preemption = weakref.ref(exception, self._on_preemption_gone)
        elif not self._has_come:
            self._give_back()
            return
        # Python stops calling handlers before it has ended, and lets signals end the process from then on.
        atexit.register(self._ignore)

    def settle(self) -> None:
        """Tell the watch that the script has reacted to the signal and continues.

        You call it within the ``with`` block, after the reaction to a signal, for example when a checkpoint has been
        saved, if the script does not end. Without this call, the watch expects the process to end soon after a signal,
        and ignores further signals after the block. With it, the end of the block restores the previous handlers, so
        that a later signal has its usual effect. If no signal has arrived, the call has no effect.

        Example:
            >>> import os, signal
            >>> from pa_distributed import SignalWatch
            >>> before = signal.getsignal(signal.SIGUSR1)
            >>> with SignalWatch(["SIGUSR1"], lambda: print("saving")) as watch:
            ...     os.kill(os.getpid(), signal.SIGUSR1)
            ...     watch.settle()
            saving
            >>> signal.getsignal(signal.SIGUSR1) == before
            True
        """
        self._has_come = False

    def _watch(self, watched: signal.Signals) -> None:
        """Install the handler of a signal, or join the watch that has installed its handler already."""
        handler = signal.getsignal(watched)
        other = getattr(handler, "__self__", None)
        if not isinstance(other, SignalWatch):
            self._before[watched] = handler
        elif other._has_ended:  # it expected the end of the process, but the process continues
            # Unless the garbage collector has let it give the signal back since.
            self._before[watched] = (
                other._before.pop(watched) if watched in other._before else signal.getsignal(watched)
            )
            if other._has_come:
                self._has_come, self.received = True, other.received
        else:  # a watch that is still active
            other._told.append(self)
            return
        signal.signal(watched, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self._has_come = True
        self._tell()

    def _tell(self) -> None:
        """Call the function of this watch, and the functions of watches that have joined it."""
        for watch in self._told:
            watch.received = self.received
            watch._on_signal()

    def _on_preemption_gone(self, _reference: object) -> None:
        """Restore the handlers if the script has caught the exception; if it has not, no function is running."""
        is_in_script = sys._getframe().f_back is not None  # pyright: ignore[reportPrivateUsage]  # documented
        if is_in_script and threading.current_thread() is threading.main_thread():
            self._give_back()

    def _give_back(self) -> None:
        """Restore the previous handlers."""
        atexit.unregister(self._ignore)
        for watched, handler in self._before.items():
            if signal.getsignal(watched) == self._handle:  # the script may have set a different handler meanwhile
                signal.signal(watched, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _ignore(self) -> None:
        for watched in self._before:
            signal.signal(watched, signal.SIG_IGN)


def _signal(given: str | int) -> signal.Signals:
    """Return the signal with a name or number."""
    try:
        return signal.Signals[given] if isinstance(given, str) else signal.Signals(given)
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"There is no signal {given!r} on this system. Pass one of signal.Signals or its name, such as 'SIGTERM'."
        ) from error
