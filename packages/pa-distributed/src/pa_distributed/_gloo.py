"""What a process on gloo needs to fork workers in the middle of a run, and to end in order."""

from __future__ import annotations

import atexit
import functools
import os
import time
from pathlib import Path

import torch.distributed as dist

from pa_distributed._processes import runs_on_gloo

_SECONDS_TO_WAIT = 1.0
"""How long a fork waits at most for threads that a busy machine keeps from running."""

_THREADS = Path("/proc/self/task")
_GLOO = "pt_gloo_runloop"
_TELLING = ("State:", "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:")
_SECONDS_BETWEEN_LOOKS = 0.0005


def prepare_gloo() -> None:
    """Make this process leave the others in order when it ends, and fork only while threads of gloo rest.

    Call it once the processes are connected; where they are not by gloo, nothing is changed. What is changed stays
    until the process ends.

    Threads of gloo that are still alive when Python ends abort some processes after their work is done, with an exit
    status that tells the launcher of a failure. And after each collective on tensors that Python knows, a thread of
    gloo takes Python's lock to give them back, and holds the list of Python's threads locked for a moment. CPython 3.11
    copies that lock with a fork, locked as it is, and then waits for it in the child for ever: the worker of a loader
    never comes to life, and the run stands still. On two busy cores it took a minute or two of training with forks in
    each epoch. Elsewhere than on Linux, where nothing tells what a thread does, forks stay as they are.

    Example:
        >>> prepare_gloo()  # after torch.distributed.init_process_group("gloo")
    """
    if runs_on_gloo():
        atexit.unregister(_leave_processes)
        atexit.register(_leave_processes)
        _fork_between_collectives()


def _leave_processes() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@functools.cache
def _fork_between_collectives() -> None:
    if _THREADS.is_dir():
        os.register_at_fork(before=_wait_for_gloo)


def _wait_for_gloo() -> None:
    """Wait until no thread of gloo has done anything while it could have had Python's lock.

    That one sleeps tells nothing: it may be waiting for the lock, to continue with the next tensor once it has it.
    """
    give_up = time.monotonic() + _SECONDS_TO_WAIT
    before: dict[str, str] = {}
    now = _gloo_threads()
    while (
        now and (now != before or not all("(sleeping)" in one for one in now.values())) and time.monotonic() < give_up
    ):
        time.sleep(_SECONDS_BETWEEN_LOOKS)  # gives Python's lock to whoever waits for it
        before, now = now, _gloo_threads()


def _gloo_threads() -> dict[str, str]:
    """What each thread of gloo is doing, and how often it has been switched to."""
    return {
        thread.name: "".join(line for line in _read(thread / "status").splitlines() if line.startswith(_TELLING))
        for thread in _THREADS.iterdir()
        if _read(thread / "comm").startswith(_GLOO)
    }


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # the thread has ended
        return ""
