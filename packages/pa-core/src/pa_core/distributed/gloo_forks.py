"""Forking next to the threads of gloo, as loaders do that start their workers in the middle of a run.

After each collective on tensors that Python knows, a thread of gloo takes Python's lock to give them back, and holds
the list of Python's threads locked for a moment. CPython 3.11 copies that lock with the fork, locked as it is, and then
waits for it in the child for ever: the worker never comes to life, and the run stands still. On two busy cores it took
a minute or two of training with forks in each epoch.
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path

__all__ = ["SECONDS_TO_WAIT", "fork_between_collectives"]

SECONDS_TO_WAIT = 1.0
"""How long a fork waits at most for threads that a busy machine keeps from running."""

_THREADS = Path("/proc/self/task")
_GLOO = "pt_gloo_runloop"
_TELLING = ("State:", "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:")
_SECONDS_BETWEEN_LOOKS = 0.0005


@functools.cache
def fork_between_collectives() -> None:
    """Have every later fork of this process wait until the threads of gloo have nothing left to do.

    Elsewhere than on Linux, where nothing tells what a thread does, forks stay as they are.
    """
    if _THREADS.is_dir():
        os.register_at_fork(before=_wait_for_gloo)


def _wait_for_gloo() -> None:
    """Wait until no thread of gloo has done anything while it could have had Python's lock.

    That one sleeps tells nothing: it may be waiting for the lock, to continue with the next tensor once it has it.
    """
    give_up = time.monotonic() + SECONDS_TO_WAIT
    before: dict[str, str] = {}
    now = _gloo_threads()
    while now and (now != before or not all(map(_sleeps, now.values()))) and time.monotonic() < give_up:
        time.sleep(_SECONDS_BETWEEN_LOOKS)  # gives Python's lock to whoever waits for it
        before, now = now, _gloo_threads()


def _gloo_threads() -> dict[str, str]:
    """What each thread of gloo is doing, and how often it has been switched to."""
    return {
        thread.name: "".join(line for line in _read(thread / "status").splitlines() if line.startswith(_TELLING))
        for thread in _THREADS.iterdir()
        if _read(thread / "comm").startswith(_GLOO)
    }


def _sleeps(status: str) -> bool:
    return "(sleeping)" in status


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # the thread has ended
        return ""
