"""What processes tell each other by name, from any thread, while their main threads are busy with collectives."""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, Final

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from pa_core import _torch
from pa_core.distributed.signs import Signs
from pa_core.errors import OtherProcessError

__all__ = ["Mailbox"]

_SECONDS_UNTIL_GONE = 15.0
_SECONDS_BETWEEN_LOOKS: Final = (0.002, 0.1)
"""At first and at most."""

_COME: Final = "has come"

_topics = itertools.count(1)


class Mailbox:
    """Messages about one thing that the processes do together.

    Every process makes as many mailboxes as the others, in the same order; only that, and nothing that follows, must
    happen in the main thread. No process waits for a message with an open connection, so that the main thread is never
    held up.
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
        pause = _SECONDS_BETWEEN_LOOKS[0]
        with _explained():
            while not self._store.check([key]):
                self._signs.of_others()
                if self._signs.silent_for(rank) > _SECONDS_UNTIL_GONE:
                    raise _missing(rank, f"which has sent no heartbeat for {_SECONDS_UNTIL_GONE:g} seconds")
                time.sleep(pause)
                pause = min(2 * pause, _SECONDS_BETWEEN_LOOKS[1])
            return self._store.get(key).decode()

    def wait_for_all(self) -> None:
        """Come, and return once all processes have, no matter how much later; none waits in an exchange meanwhile.

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
