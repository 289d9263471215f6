"""Two workarounds for gloo: an orderly end of the process, and forks that cannot deadlock."""

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
    """Prevent crashes at exit and deadlocks in data loader workers of processes that communicate through gloo.

    Call it once on every process, after ``torch.distributed.init_process_group("gloo")`` and before the first data
    loader with workers is iterated. With other backends, and on one process, it does nothing. A second call has no
    further effect. The effect lasts until the process ends; you need not undo it.

    It works around two problems:

    - **Crashes at exit.** If gloo threads are still alive when Python exits, they abort some processes after all work
      is done. The launcher then reports a failure. This function destroys the process group at exit, which ends the
      threads.
    - **Deadlocks of workers.** After a collective, a gloo thread briefly holds a lock of the Python interpreter. If the
      process forks at this moment, CPython 3.11 copies the locked lock, the new worker waits for it forever, and the
      run hangs. On two busy cores, this happened within a minute or two of training with forks in each epoch. This
      function delays each fork, by at most a second, until the gloo threads are idle. It can do so only on Linux.

    Example:
        >>> import torch
        >>> from pa_distributed import prepare_gloo
        >>> store = torch.distributed.HashStore()
        >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> prepare_gloo()
        >>> torch.distributed.destroy_process_group()
    """
    if runs_on_gloo():
        atexit.unregister(_leave_processes)
        atexit.register(_leave_processes)
        _fork_between_collectives()


def _leave_processes() -> None:
    """Destroy the process group, if the script has not done so."""
    if dist.is_initialized():
        dist.destroy_process_group()


@functools.cache
def _fork_between_collectives() -> None:
    """Make each fork wait for the gloo threads, on systems that show the state of threads."""
    if _THREADS.is_dir():
        os.register_at_fork(before=_wait_for_gloo)


def _wait_for_gloo() -> None:
    """Wait until every gloo thread sleeps, and has not run since the last look.

    A sleeping thread proves nothing, because it may be waiting for the GIL, and may continue with the next tensor once
    it has the GIL.
    """
    give_up = time.monotonic() + _SECONDS_TO_WAIT
    before: dict[str, str] = {}
    now = _gloo_threads()
    while (
        now
        and (now != before or not all("(sleeping)" in state for state in now.values()))
        and time.monotonic() < give_up
    ):
        time.sleep(_SECONDS_BETWEEN_LOOKS)  # gives Python's lock to a thread that waits for it
        before, now = now, _gloo_threads()


def _gloo_threads() -> dict[str, str]:
    """Return the state of each gloo thread, and how often the system has switched to it."""
    return {
        thread.name: "".join(line for line in _read(thread / "status").splitlines() if line.startswith(_TELLING))
        for thread in _THREADS.iterdir()
        if _read(thread / "comm").startswith(_GLOO)
    }


def _read(file: Path) -> str:
    """Return the text of a file, empty if its thread has ended."""
    try:
        return file.read_text()
    except OSError:  # the thread has ended
        return ""
