"""What processes print before they end together: each its stack, one after the other, and one of them the reason."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from pa_core.distributed.main_thread import stack_of
from pa_core.errors import OtherProcessError

__all__ = ["end_all_processes"]

_SECONDS_FOR_TURN = 3.0
_SECONDS_FOR_REASON = 6.0
_SECONDS_IN_ALL = 20.0
_SECONDS_BETWEEN_LOOKS = 0.05


def end_all_processes(store: Store, reason: OtherProcessError, *, found_by: int, thread: int) -> NoReturn:
    """Print the stack of this process when it is its turn, and the reason on one of them, and end with status 1.

    Every process must call this, from its own thread.

    Args:
        store: What the processes take turns by.
        reason: Why they end.
        found_by: The rank that prints it.
        thread: The thread whose stack is printed.
    """
    # Whatever holds up the rest, such as a pipe that nobody reads: the process ends.
    guard = threading.Timer(_SECONDS_IN_ALL, os._exit, [1])
    guard.daemon = True
    guard.start()
    rank, world = dist.get_rank(), dist.get_world_size()
    with suppress(Exception):  # whoever keeps the store has ended
        _tell_launcher(reason)
        _wait_for(store, [] if rank == 0 else [_turn(rank - 1)], _SECONDS_FOR_TURN)
    with suppress(Exception):
        _write(f"This process ends. Its stack, the innermost call last:\n{stack_of(thread)}")
    with suppress(Exception):
        store.set(_turn(rank), "")
        if rank == found_by:
            _wait_for(store, [_turn(other) for other in range(world)], _SECONDS_FOR_REASON)
            _write(f"{type(reason).__module__}.{type(reason).__qualname__}: {reason}\n")
            store.set("reason", "")
        else:
            _wait_for(store, ["reason"], 2 * _SECONDS_FOR_REASON)
    with suppress(Exception):
        for worker in multiprocessing.active_children():
            worker.kill()  # one that is stuck would live on, and a launcher wait for what it might print
    os._exit(1)


def _tell_launcher(reason: OtherProcessError) -> None:
    """Write the reason where torchrun looks for it."""
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    try:
        raise reason
    except OtherProcessError:  # what is written is the exception that is being handled
        get_error_handler().record_exception(reason)


def _turn(rank: int) -> str:
    return f"turn/{rank}"


def _wait_for(store: Store, keys: Sequence[str], seconds: float) -> None:
    give_up = time.monotonic() + seconds
    while keys and not store.check(list(keys)) and time.monotonic() < give_up:
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _write(text: str) -> None:
    """Print in one piece, with the rank before each line as torch has it."""
    prefix = f"[rank{dist.get_rank()}]: "
    sys.stdout.flush()
    sys.stderr.write("".join(prefix + line for line in text.splitlines(keepends=True)))
    sys.stderr.flush()
