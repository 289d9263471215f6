"""Ranks, which are processes, or threads of a process: how they find each other, and exchange Python values."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from pa_distributed import OtherProcessError, store_of_processes
from pa_trial.errors import ConfigurationError, InternalException

_torch_distributed: Any = dist  # torch annotates its process groups only partly, and does not export its stores
_SHORTEST_PAUSE = 0.0002
_LONGEST_PAUSE = 0.02
_SECONDS_UNTIL_FREE = 5.0
_SECONDS_UNTIL_CHIEF_COMES = 60.0
_VALUE, _ERROR = b"v", b"e"


class RankGroup:
    """Exchanges picklable values between ranks; all ranks have to create the group and make the same calls.

    Args:
        store: A store that all ranks can reach. It is no longer needed once the group is created.
        name: Distinguishes the group from others in the store.
        ranks: The numbers of the ranks of the group in messages.
        rank: The position of this rank among them.
        max_wait_seconds: The number of seconds to wait for another rank; None waits forever.

    Raises:
        OtherProcessError: Another rank has not connected in time.
    """

    def __init__(self, store: Store, name: str, ranks: list[int], rank: int, max_wait_seconds: float | None) -> None:
        self._ranks = ranks
        self._rank = rank
        timeout = timedelta(days=365) if max_wait_seconds is None else timedelta(seconds=max_wait_seconds)
        own = PrefixStore(name, store)
        with _explaining_failures():
            own.set(f"joined/{rank}", "")
            _wait_until_joined(own, ranks, timeout.total_seconds())
            self._group: Any = _torch_distributed.ProcessGroupGloo(own, rank, len(ranks), timeout)

    def allgather(self, value: object) -> list[Any]:
        """Return the values of all ranks, in their order.

        Args:
            value: The value of this rank.

        Raises:
            OtherProcessError: Another rank has failed, has left, or has not made the call in time.
        """
        try:
            own = _VALUE + pickle.dumps(value)
        except Exception as error:
            self._exchange(_ERROR + f"{type(error).__name__} on rank {self._ranks[self._rank]}: {error}".encode())
            raise
        received = self._exchange(own)
        failed = [answer[1:].decode() for answer in received if answer[:1] == _ERROR]
        if failed:
            raise OtherProcessError(
                f"Another rank failed while this rank waited for it: {'; '.join(failed)}. See its traceback."
            )
        return [pickle.loads(answer[1:]) for answer in received]  # from ranks of the same program, never from a file

    def _exchange(self, own: bytes) -> list[bytes]:
        sizes = [int(size) for size in self._gather(torch.tensor([len(own)]))]
        padded = torch.frombuffer(bytearray(own.ljust(max(sizes))), dtype=torch.uint8)
        return [tensor.numpy().tobytes()[:size] for tensor, size in zip(self._gather(padded), sizes, strict=True)]

    def _gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        gathered = [torch.empty_like(own) for _ in self._ranks]
        pause = _SHORTEST_PAUSE
        with _explaining_failures():
            work = self._group.allgather([gathered], [own])
            while not work.is_completed():  # unlike work.wait(), this loop can be interrupted
                time.sleep(pause)
                pause = min(pause * 1.5, _LONGEST_PAUSE)
            work.wait()
        return gathered


def _wait_until_joined(store: Store, ranks: list[int], max_wait_seconds: float) -> None:
    give_up = time.monotonic() + max_wait_seconds
    missing = list(range(len(ranks)))
    while missing := [place for place in missing if not store.check([f"joined/{place}"])]:
        if time.monotonic() > give_up:
            names = ", ".join(str(ranks[place]) for place in missing)
            raise TimeoutError(f"rank {names} has not arrived within {max_wait_seconds:g} seconds")
        time.sleep(_LONGEST_PAUSE)


@contextmanager
def _explaining_failures() -> Generator[None]:
    try:
        yield
    except (RuntimeError, TimeoutError) as error:  # errors of the connection
        found = str(error).partition("This is typically")[0]  # after it, torch only guesses
        raise OtherProcessError(
            f"This rank waited for another rank that has failed, has left, or did not come in time: {found}. All ranks "
            "must make the same calls in the same order. Look for collectives of the context that are called only on "
            "some ranks, for example under an if."
        ) from error


def connect(rank: int, size: int, address: str, port: int) -> Store:
    """Return a store that only the ranks of this ``DistributedContext`` share.

    Args:
        rank: The number of this rank.
        size: The number of ranks.
        address: The address of the machine of rank 0.
        port: The port on which rank 0 listens if the ranks are not connected yet.

    Raises:
        ConfigurationError: Another program listens on the port.
        InternalException: Rank 0 cannot be reached.
    """
    shared = _store_at_hand(rank, size)
    if shared is None:
        return _store_of_chief(rank, address, port)
    return PrefixStore(f"pa_trial/distributed/{shared.add(f'pa_trial/joined/{rank}', 1)}", shared)


def _store_at_hand(rank: int, size: int) -> Any:
    """Return the store that has connected the processes: the store of torch's process group, or else torchrun's."""
    if dist.is_available() and dist.is_initialized():
        group: Any = store_of_processes()
        # A separate connection: the process group may be waiting on its own connection.
        return group.clone() if (dist.get_rank(), dist.get_world_size()) == (rank, size) else None
    numbers = os.environ
    is_launched = {"MASTER_ADDR", "MASTER_PORT"} <= set(numbers)
    if is_launched and (numbers.get("RANK"), numbers.get("WORLD_SIZE")) == (str(rank), str(size)):
        return next(_torch_distributed.rendezvous("env://"))[0]
    return None


def _store_of_chief(rank: int, address: str, port: int) -> Store:
    give_up = time.monotonic() + (_SECONDS_UNTIL_FREE if rank == 0 else _SECONDS_UNTIL_CHIEF_COMES)
    while True:
        cause: RuntimeError | None = None
        try:
            store = _torch_distributed.TCPStore(address, port, is_master=rank == 0, wait_for_workers=False)
            # The store has this key already: it is left over from an earlier context, or belongs to another training.
            if store.add(f"joined/{rank}", 1) == 1:
                return cast("Store", store)
        except RuntimeError as error:
            cause = error
        if time.monotonic() > give_up and (rank == 0 or cause is None):
            problem = f"The port of a DistributedContext is in use: port {port} on rank {rank}."
            do = "Pass another port_offset on all ranks, or use torchrun, which needs no port."
            raise ConfigurationError(problem, do=do) from cause
        if time.monotonic() > give_up:
            problem = f"The chief of a DistributedContext cannot be reached: no answer from rank 0 at {address}:{port}."
            raise InternalException(problem, do="Check chief_ip and pub_port, and that rank 0 is running.") from cause
        time.sleep(_LONGEST_PAUSE)
