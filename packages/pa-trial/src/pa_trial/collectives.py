"""What the processes of a training exchange besides gradients; on one process, nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_collectives: Any = dist  # torch annotates its collectives only in part


def num_processes() -> int:
    """Return the number of processes, 1 where there is no process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, 0 where there is no process group."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def broadcast(tensors: Iterable[Tensor]) -> None:
    """Give every process the values that rank zero has; tensors of one dtype travel together.

    Args:
        tensors: Tensors of the same shapes on each process, in the same order, on the device of the training.
    """
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors if num_processes() > 1 else ():
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    with torch.no_grad():
        for together in by_dtype.values():
            flat = torch.cat([tensor.reshape(-1) for tensor in together])
            _collectives.broadcast(flat, src=0)
            pieces = torch.split(flat, [tensor.numel() for tensor in together])
            for tensor, piece in zip(together, pieces, strict=True):
                tensor.copy_(piece.view_as(tensor))
