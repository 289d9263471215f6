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

from pa_distributed._errors import OtherProcessError
from pa_distributed._processes import gather_objects, is_alone, num_processes
from pa_distributed._signs import Signs
from pa_distributed._torch import store_of_processes

_SECONDS_UNTIL_GONE = 15.0
_SECONDS_BETWEEN_LOOKS: Final = (0.002, 0.1)
"""At first and at most."""
_SHARE_OF_WAIT: Final = 0.1
"""How much longer a wait may take for looking seldom."""

_COME: Final = "has come"

_topics = itertools.count(1)


class RankMessages:
    """What processes tell each other by name about one thing that they do together, from any thread.

    Every process makes as many of these as the others, in the same order; only that, and nothing that follows, must
    happen in the main thread. There have to be several processes.

    Attributes:
        rank: The rank of this process.
        num_processes: How many there are.

    Example:
        >>> def save(piece: str) -> list[str]:
        ...     messages = RankMessages()
        ...     messages.post(f"piece {messages.rank}", piece)
        ...     return [messages.wait_for(f"piece {rank}", rank) for rank in range(messages.num_processes)]
    """

    def __init__(self) -> None:
        self.rank: int = dist.get_rank()
        self.num_processes: int = num_processes()
        # A connection of its own: other threads may be waiting in theirs. Torch does not annotate clone().
        shared: Any = store_of_processes()
        connection: Store = shared.clone()
        self._store = PrefixStore(f"pa_distributed/messages/{next(_topics)}", connection)
        self._has_come = False
        self._signs = Signs(PrefixStore("pa_distributed/watch", connection), self.rank, self.num_processes)

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
        shortest, longest = _SECONDS_BETWEEN_LOOKS
        started = time.monotonic()
        with _explained():
            while not self._store.check([key]):
                if rank != self.rank and self._signs.of_others()[rank].silent > _SECONDS_UNTIL_GONE:
                    raise _missing(rank, f"which has sent no heartbeat for {_SECONDS_UNTIL_GONE:g} seconds")
                waited = time.monotonic() - started
                time.sleep(min(max(shortest, _SHARE_OF_WAIT * waited), longest))
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
        f"Another process has failed, or is gone, while this one waited for it: rank {rank}, {why}. See what it "
        "printed last."
    )


@contextmanager
def _explained() -> Generator[None]:
    try:
        yield
    except OtherProcessError:
        raise
    except RuntimeError as error:  # of the connection
        raise OtherProcessError(
            f"The process that connects the others is gone ({type(error).__name__}: {error}). See what the other "
            "processes and the launcher printed last."
        ) from error


def run_while_others_wait(action: Callable[[], None] | None) -> None:
    """Do something that may take long on some processes, while the others wait; every process must call this.

    They wait without a collective, and so without a timeout. The first error that ends the action on a process is
    raised on all of them.

    Args:
        action: What this process does; None for one that only waits.

    Raises:
        OtherProcessError: Another process is gone.

    Example:
        >>> run_while_others_wait(lambda: print("merging the files"))
        merging the files
    """
    if is_alone():
        if action is not None:
            action()
        return
    problem: Exception | None = None
    try:
        if action is not None:
            action()
    except Exception as error:
        problem = error  # whatever it is, all processes are told
    RankMessages().wait_for_all()
    for met in gather_objects(problem):
        if met is not None:
            raise met
