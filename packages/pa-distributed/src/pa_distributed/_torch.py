"""The only module that uses private names of torch, each with the public way that is not enough.

Nothing is looked up when this module is imported. Where a version of torch lacks a name, what needs it says so.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import Store

BUFFERS: Final = "_buffers"
"""Where a module has its buffers in its ``vars``; ``named_buffers`` makes a name for each, which takes longer."""

_C10D: Final = "torch.distributed.distributed_c10d"
_MISSING: Final = object()


def _private(owner: object, name: str) -> Any:
    """Return an attribute of an object of torch.

    Raises:
        RuntimeError: This version of torch has none of this name.
    """
    found = getattr(owner, name, _MISSING)
    if found is _MISSING:
        raise RuntimeError(
            "This needs a part of torch that has no public name, and that torch "
            f"{torch.__version__} does not have: {getattr(owner, '__name__', type(owner).__name__)}.{name}. Install a "
            "version that was tried, torch 2.11 to 2.15, or a newer pa-distributed."
        )
    return found


def store_of_processes() -> Store:
    """Return the key-value store through which the processes have found each other.

    It works from any thread of any process, no matter what the others are in. A separate store would need an address
    that all of them know.

    Example:
        >>> import torch
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> store = store_of_processes()
        >>> store.set("who has won", "rank 0")
        >>> store.get("who has won")
        b'rank 0'
        >>> torch.distributed.destroy_process_group()
    """
    return cast("Store", _private(importlib.import_module(_C10D), "_get_default_store")())


def collectives_begun() -> int:
    """Return how many collectives of all processes this one has begun; profilers count them at a price."""
    return int(_private(dist.group.WORLD, "_get_sequence_number_for_group")())


def collectives_begun_in_all_groups() -> int:
    """Return the number of all groups: torch lists none of them, and models that are sharded have their own."""
    number = 0
    for group in list(_private(importlib.import_module(_C10D), "_world").pg_map):
        count: Callable[[], int] = _private(group, "_get_sequence_number_for_group")
        with suppress(RuntimeError):  # a backend that does not count
            number += count()
    return number


def seconds_until_timeout() -> float:
    """Return for how long the group of all processes waits, infinite where it does not say; torch only takes it."""
    group = dist.group.WORLD
    get_backend, devices = _private(group, "_get_backend"), _private(group, "_device_types")
    with suppress(Exception):  # a backend of another kind
        return float(min(get_backend(device).options._timeout for device in devices).total_seconds())
    return math.inf


def foreach(operation: str) -> Callable[..., Any]:
    """Return the operation on lists of tensors, as torch's optimizers apply it; tensor by tensor, each is a call.

    Args:
        operation: Its name in torch without ``_foreach_``, such as ``"mul_"``. No list that it takes may be empty.
    """
    return cast("Callable[..., Any]", _private(torch, f"_foreach_{operation}"))


def after_backward_pass(call: Callable[[], None]) -> None:
    """Call something at the end of the backward pass in progress, as ``DistributedDataParallel`` does.

    Args:
        call: What is called; hooks of tensors come before the end.
    """
    engine = _private(torch.autograd.Variable, "_execution_engine")
    _private(engine, "queue_callback")(call)


def ignored_by_ddp(module: nn.Module) -> set[str]:
    """Return the names that ``DistributedDataParallel`` was told to leave alone, for which torch has no public way.

    Args:
        module: The module, before it is wrapped. Only one that was told so has the attribute.
    """
    # The key has a dot before names that belong to the outermost module.
    return {name.removeprefix(".") for name in getattr(module, "_ddp_params_and_buffers_to_ignore", ())}


def versions_of(tensors: Iterable[Tensor]) -> list[int]:
    """Return how often tensors were changed in place, which torch counts for its own checks."""
    return [tensor._version for tensor in tensors]


def all_gather_single(output: Tensor, own: Tensor, *, async_op: bool = False) -> Any:
    """Gather the tensors of all processes one after the other; torch 2.13 has renamed it."""
    name = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    return getattr(dist, name)(output, own, async_op=async_op)
