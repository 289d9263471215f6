"""Runs a training script, and starts it again whenever it is killed: a few tenths of a second later it trains.

    python keep_running.py train.py --epochs 100

Most of the time from a kill to the next update is spent on importing torch. This program imports torch once, and starts
the script by forking itself. The script needs no change: it saves training states and passes `resume_from`. It has to
be a single process, on Linux; `torchrun` starts its own processes.

It starts the script again only after a SIGKILL, for example when memory runs out. Any other end of the script also
ends this program, with the same status. Signals such as SIGTERM are passed on to the script.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import runpy
import signal
import sys
import time
from pathlib import Path

gc.disable()  # imported modules stay: a search for garbage in them would take half a second

import numpy as np  # noqa: E402
import torch._dynamo  # noqa: E402, F401  # pyright: ignore[reportUnusedImport]  # each optimizer imports it

KILLS_IN_A_ROW, SECONDS = 3, 5.0
PASSED_ON = (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
KILL_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


def main(arguments: list[str]) -> int:
    """Run the script until it ends by itself, and return its exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the script too, which decides
    kills_in_a_row = 0
    while kills_in_a_row < KILLS_IN_A_ROW:
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            become_script(arguments)
            return 0
        status = wait_for(pid)
        if status != -signal.SIGKILL:
            return status if status >= 0 else 128 - status
        seconds = time.monotonic() - started
        kills_in_a_row = kills_in_a_row + 1 if seconds < SECONDS else 0
        print(f"{arguments[0]} was killed after {seconds:.1f} s", file=sys.stderr, flush=True)
    print(f"It is not started again: it was killed early {KILLS_IN_A_ROW} times in a row", file=sys.stderr)
    return 128 + signal.SIGKILL


def wait_for(pid: int) -> int:
    """Pass signals on until a process ends; return its exit status, or minus the signal that ended it."""
    for passed_on in PASSED_ON:
        signal.signal(passed_on, lambda number, _: os.kill(pid, number))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for passed_on in PASSED_ON:  # if the script has ended by itself, its status counts
        signal.signal(passed_on, signal.SIG_DFL if status == -signal.SIGKILL else signal.SIG_IGN)
    return status


def become_script(arguments: list[str]) -> None:
    """Run a command line as `python` does."""
    ctypes.CDLL(None).prctl(KILL_WITH_PARENT, signal.SIGKILL)  # so that the next start does not find it running
    for passed_on in PASSED_ON:
        signal.signal(passed_on, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.enable()
    random.seed()  # so that each start draws other numbers
    np.random.seed()
    sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).resolve().parent)
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    gc.freeze()
    sys.exit(main(sys.argv[1:]))
