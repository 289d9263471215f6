"""How ranks find each other: a key-value store that all of them share."""

from __future__ import annotations

import os
import time
from typing import Any, cast

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from pa_data.errors import ConfigurationError
from pa_trial._torch import store_of_processes
from pa_trial.errors import InternalException

_SECONDS_UNTIL_FREE = 5.0
_SECONDS_UNTIL_CHIEF_COMES = 60.0
_SECONDS_BETWEEN_TRIES = 0.05

_torch_distributed: Any = dist  # which does not export its stores


def connect(rank: int, size: int, address: str, port: int) -> Store:
    """Return a store that the ranks of one ``DistributedContext`` share, and nobody else.

    Args:
        rank: The number of this rank.
        size: The number of ranks.
        address: The address of the machine of rank 0.
        port: Where rank 0 listens if nothing connects the ranks yet.

    Raises:
        ConfigurationError: Another program listens on the port.
        InternalException: Rank 0 cannot be reached.
    """
    shared = _store_at_hand(rank, size)
    if shared is None:
        return _store_of_chief(rank, address, port)
    return PrefixStore(f"pa_trial/distributed/{shared.add(f'pa_trial/joined/{rank}', 1)}", shared)


def _store_at_hand(rank: int, size: int) -> Any:
    """Return what has connected the processes: the process group of torch, or else torchrun."""
    if dist.is_available() and dist.is_initialized():
        group: Any = store_of_processes()
        # A connection of its own: the process group may be waiting in the other one.
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
            # A second time: this is what is left of an earlier context, or another training.
            if store.add(f"joined/{rank}", 1) == 1:
                return cast("Store", store)
        except RuntimeError as error:
            cause = error
        if time.monotonic() > give_up:
            raise _port_in_use(rank, port) if rank == 0 or cause is None else _unreachable(address, port) from cause
        time.sleep(_SECONDS_BETWEEN_TRIES)


def _unreachable(address: str, port: int) -> InternalException:
    problem = f"The chief of a DistributedContext cannot be reached: no answer from rank 0 at {address}:{port}."
    return InternalException(problem, do="Check chief_ip and pub_port, and that rank 0 reaches this call.")


def _port_in_use(rank: int, port: int) -> ConfigurationError:
    problem = f"The port of a DistributedContext is in use: port {port} on rank {rank}."
    return ConfigurationError(problem, do="Pass another port_offset on all ranks, or use torchrun, which needs none.")
