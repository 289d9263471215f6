"""Functions that count the processes of the run and collect their objects."""

from __future__ import annotations

import os
from contextvars import ContextVar
from typing import Any, Final, TypeVar

import torch.distributed as dist

from pa_distributed._errors import OtherProcessError
from pa_distributed._portable import Portable

_R = TypeVar("_R")

# torch annotates its collectives only in part
_collectives: Any = dist

RANK_LOCAL: Final = ContextVar("RANK_LOCAL", default=False)
"""Whether this process runs a block that the other processes do not run, so that it must not wait for them."""


def num_processes() -> int:
    """Return the number of connected processes, or 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def runs_on_gloo() -> bool:
    """Return whether the run has several processes that communicate through gloo."""
    return num_processes() > 1 and dist.get_backend() == "gloo"


def is_alone() -> bool:
    """Return whether this run has a single process.

    Raises:
        RuntimeError: A launcher has started several processes, and they are not connected yet.
    """
    launched = os.environ.get("WORLD_SIZE", "1")
    if launched != "1" and not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            f"This process is not connected with the others that were launched: WORLD_SIZE={launched}, and no process "
            "group. Call torch.distributed.init_process_group() before."
        )
    return num_processes() == 1


def require_others() -> None:
    """Raise an error in a function or block that other processes do not run, instead of waiting for them.

    Raises:
        OtherProcessError: This process runs a function for the others, or before them.
    """
    if RANK_LOCAL.get():
        raise OtherProcessError(
            "This process would wait forever for the others: it is in a function or block that they do not run now. "
            "Call this before or after."
        )


def gather_objects(value: _R, *, on_first_only: bool = False) -> list[_R]:
    """Collect a picklable Python object from every process, in the order of the ranks.

    Use it for small values without a tensor form, for example metrics by name or a list of file names. Every process
    must call it, since all of them wait until the last process has arrived. Tensors of any dtype may be part of the
    objects. The function also works on one process, so that a script needs no special case.

    For tensors of the same shape, ``torch.distributed.all_gather`` is faster. To check that all processes have the same
    value, use ``require_same``. The objects are pickled, which is safe here: they are only sent between the processes
    of a run, and are never read from a file.

    Args:
        value: The object of this process. It must be picklable.
        on_first_only: Whether only rank 0 receives the objects. The default, False, gives them to all ranks, so that
            all of them can make the same decision. True sends less data, and is enough for logging.

    Returns:
        A list with the object of each rank: its item ``n`` is the object of rank ``n``. With ``on_first_only=True`` the
        list is empty on all other ranks.

    Raises:
        OtherProcessError: The other processes do not make this call now, because it is within ``rank_zero_only``,
            ``rank_zero_first`` or ``rank_local``.
        RuntimeError: A launcher has started several processes, but ``torch.distributed.init_process_group()`` has not
            been called yet.

    Example:
        >>> from pa_distributed import gather_objects
        >>> seconds_of_ranks = gather_objects({"loading": 1.5, "training": 12.0})
        >>> seconds_of_ranks
        [{'loading': 1.5, 'training': 12.0}]
        >>> max(seconds["loading"] for seconds in seconds_of_ranks)
        1.5
    """
    if is_alone():
        return [value]
    require_others()
    gathered: list[Any] = [None] * num_processes() if dist.get_rank() == 0 or not on_first_only else []
    if on_first_only:
        _collectives.gather_object(Portable(value), gathered or None)
    else:
        _collectives.all_gather_object(gathered, Portable(value))
    return gathered
