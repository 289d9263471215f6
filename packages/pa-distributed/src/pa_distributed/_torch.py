"""The only module that uses private names of torch; each function says why the public names are not enough.

Importing the module looks up no private name. If a version of torch lacks a name, the function that needs it raises an
error.
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
"""The key of a module's buffers in its ``vars``; ``named_buffers`` takes longer, since it builds a name for each."""

_C10D: Final = "torch.distributed.distributed_c10d"
_MISSING: Final = object()


def _private(owner: object, name: str) -> Any:
    """Return an attribute of a torch object.

    Raises:
        RuntimeError: This version of torch has no such attribute.
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
    """Return the key-value store through which the processes of the run found each other.

    Use it to exchange small texts outside of collectives: any thread of any process can read and write at any time, no
    matter what the other processes are doing. ``RankMessages`` is simpler for most purposes, since it notices a process
    that is gone, and uses a separate connection for each object. ``torch.distributed`` has no public function for this
    store, and a separate store would need an address that all processes know. Prefix your keys, since torch keeps its
    own keys in the same store. Call it on any process, after ``torch.distributed.init_process_group()``.

    Returns:
        The store. ``set(key, text)``, ``get(key)``, ``add(key, number)`` and ``check([key])`` are its methods. ``get``
        returns bytes; it waits for a key that is not set yet, up to the timeout of the store.

    Raises:
        RuntimeError: This version of torch has no such store.
        ValueError: The processes are not connected yet.

    Example:
        >>> import torch
        >>> from pa_distributed import store_of_processes
        >>> store = torch.distributed.HashStore()
        >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> store_of_processes().set("my_script/best_rank", "0")
        >>> store_of_processes().get("my_script/best_rank")
        b'0'
        >>> torch.distributed.destroy_process_group()
    """
    return cast("Store", _private(importlib.import_module(_C10D), "_get_default_store")())


def collectives_begun() -> int:
    """Return how many collectives of all processes this process has begun; profilers count them only at a high cost."""
    return int(_private(dist.group.WORLD, "_get_sequence_number_for_group")())


def collectives_begun_in_all_groups() -> int:
    """Return how many collectives this process has begun in all groups; torch has no public list of the groups."""
    number = 0
    for group in list(_private(importlib.import_module(_C10D), "_world").pg_map):
        count: Callable[[], int] = _private(group, "_get_sequence_number_for_group")
        with suppress(RuntimeError):  # the backend does not count
            number += count()
    return number


def seconds_until_timeout() -> float:
    """Return the timeout of the group of all processes in seconds, infinite if unknown. Torch has no public getter."""
    group = dist.group.WORLD
    get_backend, devices = _private(group, "_get_backend"), _private(group, "_device_types")
    with suppress(Exception):  # the backend has no such option
        return float(min(get_backend(device).options._timeout for device in devices).total_seconds())
    return math.inf


def foreach(operation: str) -> Callable[..., Any]:
    """Return an operation on lists of tensors, as torch's optimizers use it; it is faster than a call for each tensor.

    Args:
        operation: The name in torch without ``_foreach_``, for example ``"mul_"``. Its lists must not be empty.
    """
    return cast("Callable[..., Any]", _private(torch, f"_foreach_{operation}"))


def after_backward_pass(call: Callable[[], None]) -> None:
    """Call a function at the end of the backward pass in progress, as ``DistributedDataParallel`` does.

    Args:
        call: The function. Torch calls it after all hooks of tensors; a hook alone does not know that it is the last.
    """
    engine = _private(torch.autograd.Variable, "_execution_engine")
    _private(engine, "queue_callback")(call)


def ignored_by_ddp(module: nn.Module) -> set[str]:
    """Return the names that ``DistributedDataParallel`` is told to ignore; torch has no public way to read them.

    Args:
        module: The module, before it is wrapped. It has the attribute only if names were given.
    """
    # The key has a dot before names that belong to the outermost module.
    return {name.removeprefix(".") for name in getattr(module, "_ddp_params_and_buffers_to_ignore", ())}


def versions_of(tensors: Iterable[Tensor]) -> list[int]:
    """Return how often each tensor was changed in place, which torch counts for its own checks."""
    return [tensor._version for tensor in tensors]


def all_gather_single(output: Tensor, own: Tensor, *, async_op: bool = False) -> Any:
    """Gather the tensors of all processes into one tensor, in the order of the ranks; torch 2.13 has renamed it."""
    name = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    return getattr(dist, name)(output, own, async_op=async_op)
