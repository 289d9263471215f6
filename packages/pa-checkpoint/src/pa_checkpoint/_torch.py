"""The parts of torch that have no public name, and tensors that are split over processes.

Torch's modules for the latter are slow to import. If nobody has imported them, nothing is split.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from torch import Tensor
from torch.distributed.distributed_c10d import Store

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = ["is_sharded", "local_piece", "local_shape_and_offset", "store_of_processes", "version_of"]


def is_sharded(value: object) -> TypeGuard[DTensor]:
    """Whether a value is a ``DTensor``, of which each process has a piece."""
    tensor: Any = sys.modules.get("torch.distributed.tensor")
    return tensor is not None and isinstance(value, tensor.DTensor)


def local_piece(tensor: Tensor) -> Tensor:
    """Return the piece that this process has of a tensor, which shares its memory; a plain tensor as it is."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def version_of(tensor: Tensor) -> int:
    """Return a number that grows with each change in place that torch notes; without it, values would be compared."""
    return tensor._version


def local_shape_and_offset(
    shape: tuple[int, ...], mesh_shape: tuple[int, ...], coordinate: tuple[int, ...], placements: tuple[Any, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shape and offsets of the piece that any process has of a tensor; torch has no public function for others.

    Args:
        shape: The shape of the whole tensor.
        mesh_shape: The shape of the mesh.
        coordinate: Where the process is in it.
        placements: How each dimension of the mesh splits the tensor.
    """
    compute = importlib.import_module("torch.distributed.tensor._utils")._compute_local_shape_and_global_offset
    return cast("tuple[Any, Any]", compute(shape, mesh_shape, list(coordinate), placements))


def store_of_processes() -> Store:
    """Return the store by which the processes have found each other; public are only those that one makes oneself."""
    return cast("Store", importlib.import_module("torch.distributed.distributed_c10d")._get_default_store())
