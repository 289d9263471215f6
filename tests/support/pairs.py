"""Pairs of ranks that are forked from one script, all at the same time; how each pair ended is left behind as JSON.

A launcher would take seconds for each pair, and would end one rank when the other has ended.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, cast

import torch
from torch._C._distributed_c10d import TCPStore

_fork = multiprocessing.get_context("fork")

Case = Callable[[int], None]
"""What each rank of a pair does, called with its rank."""


def _be_rank(rank: int, port: Connection, name: str, case: Case) -> None:
    """What a forked process does, once it is told the port of its store."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), MASTER_PORT=str(port.recv()))
    file = os.open(f"{name}_{rank}.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115 - for the life of the process
    faulthandler.register(signal.SIGUSR1)
    try:
        case(rank)
    finally:
        # What ends in order at the end of a script, a process of multiprocessing leaves out.
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]  # as above


def _show_stacks(process: ForkProcess) -> float:
    """Let a process that should have ended print where it is; return how many seconds that takes at most."""
    os.kill(cast("int", process.pid), signal.SIGUSR1)
    return 1.0


class _Pair:
    """Two ranks, which wait to be connected."""

    def __init__(self, name: str, case: Case) -> None:
        self._name = name
        self._store: TCPStore | None = None
        pipes = [_fork.Pipe(duplex=False) for _ in range(2)]
        self._ports = [port for _, port in pipes]
        self._ranks = [_fork.Process(target=_be_rank, args=(rank, pipes[rank][0], name, case)) for rank in range(2)]
        for process in self._ranks:
            process.start()

    def connect(self) -> None:
        """Make their store, which outlives them as that of torchrun.

        It has threads, and what they hold while a process is forked, it would hold for ever: all are forked before.
        """
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._started = time.monotonic()
        for port in self._ports:
            port.send(self._store.port)

    def end(self, seconds: float, awaited: int) -> dict[str, Any]:
        """Wait for as many of them as are awaited to end, but not for ever, and say how they did."""
        for process in self._ranks[:awaited]:
            process.join(max(0.0, self._started + seconds - time.monotonic()))
        statuses = [process.exitcode for process in self._ranks]
        for process in self._ranks[:awaited]:
            if process.is_alive():
                process.join(_show_stacks(process))
        for process in self._ranks:
            process.kill()
        outputs = [Path(f"{self._name}_{rank}.txt").read_text() for rank in range(2)]
        return {"statuses": statuses, "outputs": outputs}


def run_pairs(cases: Mapping[str, Case], names: Sequence[str], seconds: float, alone: Sequence[str] = ()) -> None:
    """Run some cases in the current folder, each on two ranks, and write how they ended into ``ended.json``.

    Args:
        cases: All cases by name.
        names: Those that are run.
        seconds: After how many seconds ranks that have not ended are killed.
        alone: Cases of which the first rank alone ends by itself.
    """
    torch.set_num_threads(1)
    os.environ.update(
        TORCHELASTIC_USE_AGENT_STORE="True", WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1"
    )
    pairs = {name: _Pair(name, cases[name]) for name in names}
    for pair in pairs.values():
        pair.connect()
    ended = {name: pair.end(seconds, 1 if name in alone else 2) for name, pair in pairs.items()}
    Path("ended.json").write_text(json.dumps(ended))
