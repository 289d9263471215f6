"""A signal sets a flag for the time of a run, and does again afterwards what it did before."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from pa_distributed import SignalWatch


def test_a_signal_calls_the_function_while_it_is_watched_for() -> None:
    """Of two watches both hear of it, and the handler of before comes back."""
    heard: list[str] = []
    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: heard.append("before"))
    try:
        with SignalWatch(["SIGUSR1"], lambda: heard.append("outer")) as watch:
            with SignalWatch([signal.SIGUSR1], lambda: heard.append("inner")):
                os.kill(os.getpid(), signal.SIGUSR1)
            watch.settle()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert heard == ["outer", "inner", "before"]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_is_no_signal_is_refused() -> None:
    """When the watch is made, and where Python brings none."""
    with pytest.raises(ValueError, match="There is no signal 'SIGNONE' on this system"):
        SignalWatch(["SIGNONE"], lambda: None)
    refused = pytest.raises(ValueError, match="cannot be watched from the thread 'aside'")

    def watch() -> None:
        with refused, SignalWatch(["SIGTERM"], lambda: None):
            raise AssertionError

    aside = threading.Thread(target=watch, name="aside")
    aside.start()
    aside.join()
