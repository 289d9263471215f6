"""What processes tell each other by name, from any thread, and waiting for what takes long on one of them.

No process waits in a collective or with an open connection meanwhile, so that none gives up on another that is slow.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Final

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from pa_core import _torch
from pa_core.distributed.collectives import gather_objects, num_processes
from pa_core.distributed.signs import Signs
from pa_core.errors import OtherProcessError

_SECONDS_UNTIL_GONE = 15.0
_SECONDS_BETWEEN_LOOKS: Final = (0.002, 0.1)
"""At first and at most."""

_COME: Final = "has come"

_topics = itertools.count(1)


class RankMessages:
    """Messages about one thing that the processes do together.

    Every process makes as many mailboxes as the others, in the same order; only that, and nothing that follows, must
    happen in the main thread.
    """

    def __init__(self) -> None:
        self.rank: int = dist.get_rank()
        self.num_processes: int = dist.get_world_size()
        # A connection of its own: other threads may be waiting in theirs. Torch does not annotate clone().
        shared: Any = _torch.store_of_processes()
        connection: Store = shared.clone()
        self._store = PrefixStore(f"pa_core/mailbox/{next(_topics)}", connection)
        self._has_come = False
        self._signs = Signs(PrefixStore("pa_core/watch", connection), self.rank, self.num_processes)

    def post(self, key: str, message: str) -> None:
        """Leave a message for the others.

        Args:
            key: What it is called.
            message: What it says.

        Raises:
            OtherProcessError: The process that keeps the messages is gone.
        """
        with _explained():
            self._store.set(key, message)

    def wait_for(self, key: str, rank: int) -> str:
        """Return a message once it is there.

        Args:
            key: What it is called.
            rank: The process that leaves it.

        Raises:
            OtherProcessError: That process sends no heartbeat any more, or the one that keeps the messages is gone.
        """
        pause, longest = _SECONDS_BETWEEN_LOOKS
        with _explained():
            while not self._store.check([key]):
                if rank != self.rank and self._signs.of_others()[rank].silent > _SECONDS_UNTIL_GONE:
                    raise _missing(rank, f"which has sent no heartbeat for {_SECONDS_UNTIL_GONE:g} seconds")
                time.sleep(pause)
                pause = min(2 * pause, longest)
            return self._store.get(key).decode()

    def wait_for_all(self) -> None:
        """Come, and return once all processes have, no matter how much later.

        Raises:
            OtherProcessError: One of them has left, sends no heartbeat any more, or kept the messages and is gone.
        """
        self._has_come = True
        self.post(f"come/{self.rank}", _COME)
        for rank in range(self.num_processes):
            if self.wait_for(f"come/{rank}", rank) != _COME:
                raise _missing(rank, "which has raised an error before it was done")

    def leave(self) -> None:
        """Tell the others that this process does not come; without effect if it has."""
        if not self._has_come:
            with suppress(OtherProcessError):  # nobody is there to be told
                self.post(f"come/{self.rank}", "has left")

    def remove(self, key: str) -> None:
        """Remove a message that everybody has read.

        Args:
            key: What it is called.

        Raises:
            OtherProcessError: The process that keeps the messages is gone.
        """
        with _explained():
            self._store.delete_key(key)


def _missing(rank: int, why: str) -> OtherProcessError:
    return OtherProcessError(
        "Another process has failed, or is gone, while this one waited for it.",
        given=f"rank {rank}, {why}",
        do=f"See what rank {rank} printed last.",
    )


@contextmanager
def _explained() -> Generator[None]:
    try:
        yield
    except OtherProcessError:
        raise
    except RuntimeError as error:  # of the connection
        raise OtherProcessError(
            "The process that connects the others is gone.",
            given=f"{type(error).__name__}: {error}",
            do="See what the other processes and the launcher printed last.",
        ) from error


@contextmanager
def coming_together() -> Generator[None]:
    """At the end of the context, wait until all processes have come there; every process must enter it.

    If an error ends the context on one of them, the others do not wait for it any longer.

    Raises:
        OtherProcessError: Another process has failed, or is gone.

    Example:
        >>> with coming_together():
        ...     pass
    """
    messages = RankMessages() if num_processes() > 1 else None
    try:
        yield
        if messages is not None:
            messages.wait_for_all()
    finally:
        if messages is not None:
            messages.leave()


def wait_together() -> None:
    """Wait until all processes have come here, no matter how much later; every process must call this.

    Raises:
        OtherProcessError: Another process is gone.
    """
    with coming_together():
        pass


def raise_on_all(problem: Exception | None) -> None:
    """Raise what one process has met on all of them; every process must call this.

    Args:
        problem: What this process has met.
    """
    for error in gather_objects(problem):
        if error is not None:
            raise error


def do_while_others_wait(action: Callable[[], None] | None) -> None:
    """Do something that may take long on some processes, while the others wait; every process must call this.

    The first error that ends the action on a process is raised on all of them.

    Args:
        action: What this process does; None for one that only waits.

    Example:
        >>> do_while_others_wait(None)
    """
    problem: Exception | None = None
    try:
        if action is not None:
            action()
    except Exception as error:
        if num_processes() == 1:
            raise
        problem = error  # whatever it is, all processes are told
    wait_together()
    raise_on_all(problem)
