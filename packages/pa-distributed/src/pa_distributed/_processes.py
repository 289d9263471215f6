"""How many processes there are, and what each of them has."""

from __future__ import annotations

import os
from typing import Any, TypeVar

import torch.distributed as dist

from pa_distributed._portable import Portable

_R = TypeVar("_R")

# torch annotates its collectives only in part
_collectives: Any = dist


def num_processes() -> int:
    """Return the number of processes that are connected, 1 where there is no process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def runs_on_gloo() -> bool:
    """Whether there are several processes, which communicate by threads of gloo."""
    return num_processes() > 1 and dist.get_backend() == "gloo"


def is_alone() -> bool:
    """Return whether there is one process only.

    Raises:
        RuntimeError: A launcher has started several, and they are not connected yet.
    """
    launched = os.environ.get("WORLD_SIZE", "1")
    if launched != "1" and not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            f"This process is not connected with the others that were launched: WORLD_SIZE={launched}, and no process "
            "group. Call torch.distributed.init_process_group() before."
        )
    return num_processes() == 1


def gather_objects(value: _R, *, on_first_only: bool = False) -> list[_R]:
    """Return the picklable Python objects of all processes, in the order of the ranks; every process must call this.

    The objects are pickled between processes of one run, never read from a file.

    Args:
        value: What this process has.
        on_first_only: Whether the first process alone needs them; the others get an empty list, and less is sent.

    Raises:
        RuntimeError: A launcher has started several processes, and they are not connected yet.

    Example:
        >>> gather_objects({"samples": 12})
        [{'samples': 12}]
    """
    if is_alone():
        return [value]
    gathered: list[Any] = [None] * num_processes() if dist.get_rank() == 0 or not on_first_only else []
    if on_first_only:
        _collectives.gather_object(Portable(value), gathered or None)
    else:
        _collectives.all_gather_object(gathered, Portable(value))
    return gathered
