"""What the processes that save one checkpoint tell each other, from any thread, without an exchange of tensors."""

from __future__ import annotations

import itertools
from typing import Any, Protocol

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from pa_checkpoint._torch import store_of_processes

__all__ = ["Messages", "MessagesInStore", "Nobody", "several_processes"]


class Messages(Protocol):
    """What the processes tell each other of one checkpoint, without waiting for each other in the main thread.

    ``Writer`` uses the store of ``torch.distributed``. Give it others to notice sooner that a process is gone.
    """

    @property
    def rank(self) -> int:
        """The rank of this process."""
        ...

    @property
    def num_processes(self) -> int:
        """How many processes there are."""
        ...

    def post(self, key: str, message: str) -> None:
        """Leave a message for the others."""
        ...

    def wait_for(self, key: str, rank: int) -> str:
        """Return a message once the process of that rank has left it."""
        ...

    def remove(self, key: str) -> None:
        """Remove a message that everybody has read."""
        ...


class Nobody:
    """The messages of a process that writes by itself."""

    rank: int = 0
    num_processes: int = 1

    def post(self, key: str, message: str) -> None:
        """Tell nobody."""

    def wait_for(self, key: str, rank: int) -> str:
        """Return what nobody says."""
        raise LookupError(key, rank)

    def remove(self, key: str) -> None:
        """Leave everything as it is."""


class MessagesInStore:
    """Messages in the store by which the processes have found each other.

    Every process makes as many as the others, in the same order.
    """

    def __init__(self) -> None:
        self.rank: int = dist.get_rank()
        self.num_processes: int = dist.get_world_size()
        # A connection of its own: other threads may be waiting in theirs.
        shared: Any = store_of_processes()
        self._store = PrefixStore(f"pa_checkpoint/{next(_numbers)}", shared.clone())

    def post(self, key: str, message: str) -> None:
        """Leave a message for the others."""
        self._store.set(key, message)

    def wait_for(self, key: str, rank: int) -> str:
        """Return a message once it is there."""
        return self._store.get(key).decode()

    def remove(self, key: str) -> None:
        """Remove a message that everybody has read."""
        self._store.delete_key(key)


_numbers = itertools.count(1)


def several_processes() -> bool:
    """Whether there are other processes."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
