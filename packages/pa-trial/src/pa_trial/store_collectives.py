"""Collectives over a key-value store: they work between processes, and between threads of one process."""

from __future__ import annotations

import pickle
import time
from contextlib import suppress
from typing import Any, cast

from torch.distributed.distributed_c10d import Store

from pa_distributed import OtherProcessError

_BYTES_OF_A_PIECE = 2**20
"""A store of torch closes the connection on which more than 8 MiB wait to be taken."""

_SHORTEST_PAUSE = 0.0002
_LONGEST_PAUSE = 0.02
_SECONDS_BETWEEN_LOOKS_FOR_OTHERS = 0.5
_SECONDS_FOR_VALUE = 10.0
_SECONDS_FOR_ERROR = 1.0
_SECONDS_TO_LEAVE_TOGETHER = 0.5

_VALUE, _ERROR = b"v", b"e"


class StoreCollectives:
    """Gathers and broadcasts picklable values within a group of ranks, all of which make the same calls.

    Args:
        store: A connection of this rank's own.
        prefix: Distinguishes the group from others in the store.
        ranks: The ranks of the group as they are to be named in messages; the first one is the chief of the group.
        rank: The position of this rank among them.
        max_wait_seconds: For how long to wait for another rank.
    """

    def __init__(self, store: Store, prefix: str, ranks: list[int], rank: int, max_wait_seconds: float) -> None:
        self._store: Any = store  # torch annotates the methods only in part
        self._prefix = prefix
        self._ranks = ranks
        self._rank = rank
        self._max_wait_seconds = max_wait_seconds
        self._num_calls = 0
        self._unread: dict[str, float] = {}  # how long close() waits for others to read, in seconds, by key

    def gather(self, value: object) -> list[Any] | None:
        """Return the values of all ranks on the chief, None elsewhere.

        Args:
            value: The value of this rank.

        Raises:
            OtherProcessError: Another rank has failed, has left, or has not come in time.
        """
        call = self._next_call("gather")
        if self._rank != 0:
            self._post(f"{call}/{self._rank}", value)
            return None
        return [value, *(self._take(f"{call}/{rank}", rank) for rank in range(1, len(self._ranks)))]

    def broadcast(self, value: object) -> Any:
        """Return the value of the chief.

        Args:
            value: The value of this rank, which is used on the chief only.

        Raises:
            OtherProcessError: As ``gather``.
        """
        key = self._next_call("broadcast")
        if self._rank == 0:
            self._unread = {unread: wait for unread, wait in self._unread.items() if self._store.check([unread])}
            self._unread[key] = _SECONDS_FOR_VALUE
            self._post(key, value)
            return value
        record = self._wait_for(key, 0)
        received = self._unpack(record, 0, key)
        if self._store.add(f"{key}/readers", 1) == len(self._ranks) - 1:
            self._store.delete_key(f"{key}/readers")
            self._delete(key, record)
        return received

    def allgather(self, value: object) -> list[Any]:
        """Return the values of all ranks.

        Args:
            value: The value of this rank.

        Raises:
            OtherProcessError: As ``gather``.
        """
        try:
            gathered = self.gather(value)
        except OtherProcessError as error:
            self._post_error(self._next_call("broadcast"), error.given)
            raise
        return cast("list[Any]", self.broadcast(gathered))

    def close(self) -> None:
        """Tell the others that this rank has left, once they have read what it has broadcast."""
        with suppress(RuntimeError):  # whoever keeps the store has ended
            self._store.set(self._mark_of_leaving(self._rank), b"")
            begin = time.monotonic()
            for key, wait in self._unread.items():
                while self._store.check([key]) and time.monotonic() < begin + wait:
                    time.sleep(_LONGEST_PAUSE)
            if self._rank == 0:  # where the store ends with the chief, torch would warn the others of it
                marks = [self._mark_of_leaving(rank) for rank in range(len(self._ranks))]
                while not self._store.check(marks) and time.monotonic() < begin + _SECONDS_TO_LEAVE_TOGETHER:
                    time.sleep(_LONGEST_PAUSE)

    def _next_call(self, kind: str) -> str:
        self._num_calls += 1
        return f"{self._prefix}/{self._num_calls}/{kind}"

    def _mark_of_leaving(self, rank: int) -> str:
        return f"{self._prefix}/left/{rank}"

    def _post(self, key: str, value: object) -> None:
        try:
            pickled = pickle.dumps(value)
        except Exception as error:
            self._post_error(key, f"{type(error).__name__} on rank {self._ranks[self._rank]}: {error}")
            raise
        pieces = [pickled[at : at + _BYTES_OF_A_PIECE] for at in range(0, len(pickled), _BYTES_OF_A_PIECE)]
        for number, piece in enumerate(pieces[1:], start=1):
            self._store.set(f"{key}/{number}", piece)
            self._store.check([key])  # has an answer, unlike the above: by then the piece was taken
        self._store.set(key, _VALUE + len(pieces).to_bytes(4) + pieces[0])  # last: it says that the others are there

    def _post_error(self, key: str, text: str) -> None:
        if self._rank == 0:
            self._unread[key] = _SECONDS_FOR_ERROR
        self._store.set(key, _ERROR + (1).to_bytes(4) + text.encode())

    def _take(self, key: str, rank: int) -> Any:
        """Return what a rank has posted for this one alone."""
        record = self._wait_for(key, rank)
        value = self._unpack(record, rank, key)
        self._delete(key, record)
        return value

    def _unpack(self, record: bytes, rank: int, key: str) -> Any:
        if record[:1] == _ERROR:
            raise OtherProcessError(
                "Another rank failed while this one waited for it.",
                given=record[5:].decode(),
                do=f"See the traceback of rank {self._ranks[rank]}.",
            )
        pieces = [record[5:], *(self._store.get(piece) for piece in _further_pieces(key, record))]
        return pickle.loads(b"".join(pieces))  # from a rank of the same program, never from a file

    def _delete(self, key: str, record: bytes) -> None:
        # The chief may end the store as soon as the first piece, which is looked for, is gone.
        for one in [*_further_pieces(key, record), key]:
            self._store.delete_key(one)

    def _wait_for(self, key: str, rank: int) -> bytes:
        """Wait for a record; looking again and again, unlike waiting in the store, can be interrupted."""
        give_up = time.monotonic() + self._max_wait_seconds
        next_look = time.monotonic() + _SECONDS_BETWEEN_LOOKS_FOR_OTHERS
        pause = _SHORTEST_PAUSE
        try:
            while not self._store.check([key]):
                if (now := time.monotonic()) > next_look:
                    next_look = now + _SECONDS_BETWEEN_LOOKS_FOR_OTHERS
                    if self._store.check([self._mark_of_leaving(rank)]) and not self._store.check([key]):
                        raise self._missed(rank, "it has closed its DistributedContext")
                    if now > give_up:
                        raise self._missed(rank, f"it has not arrived within {self._max_wait_seconds:g} seconds")
                time.sleep(pause)
                pause = min(pause * 1.5, _LONGEST_PAUSE)
            return cast("bytes", self._store.get(key))
        except OtherProcessError:
            raise
        except RuntimeError as error:
            raise self._missed(rank, f"whoever keeps the connections has ended ({error})") from error

    def _missed(self, rank: int, why: str) -> OtherProcessError:
        return OtherProcessError(
            "This rank waited for another one that did not come.",
            given=f"rank {self._ranks[rank]}: {why}",
            do="All ranks must make the same calls in the same order. Find the line in which "
            "the rank decides whether the context's collectives are called.",
        )


def _further_pieces(key: str, record: bytes) -> list[str]:
    return [f"{key}/{number}" for number in range(1, int.from_bytes(record[1:5]))]
