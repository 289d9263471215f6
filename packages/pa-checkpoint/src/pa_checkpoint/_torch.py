"""The parts of torch that have no public name, and tensors that are split over processes.

Torch's modules for the latter are slow to import. If nobody has imported them, nothing is split.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final, TypeGuard, cast

import torch
from torch import Tensor

from pa_checkpoint._errors import CheckpointError

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
    from torch.distributed.tensor import DTensor


NESTED_SCHEDULERS: Final = "_schedulers"
"""Where ``SequentialLR`` and ``ChainedScheduler``, and their states, have theirs; the constructor is documented."""

_OLDEST_TRIED: Final = "2.11"
_NEWEST_TRIED: Final = "2.15"
_MISSING: Final = object()


def _private(owner: object, name: str) -> Any:
    """Return what has a private name.

    Raises:
        CheckpointError: This version of torch has none of this name.
    """
    found = getattr(owner, name, _MISSING)
    if found is _MISSING:
        raise _missing(f"{getattr(owner, '__name__', type(owner).__name__)}.{name}")
    return found


def _of_module(module: str, name: str) -> Any:
    try:
        return _private(importlib.import_module(module), name)
    except ImportError as error:
        raise _missing(module) from error


def _missing(name: str) -> CheckpointError:
    return CheckpointError(
        "This checkpoint needs a part of torch that has no public name, and that this version of torch does not have.",
        given=f"torch {torch.__version__}, without {name}",
        expected=f"a version that was tried: torch {_OLDEST_TRIED} to {_NEWEST_TRIED}",
        do=f'Install one: pip install "torch=={_NEWEST_TRIED}.*". A newer pa-checkpoint may know newer versions.',
    )


def is_sharded(value: object) -> TypeGuard[DTensor]:
    """Whether a value is a ``DTensor``, of which each process has a piece."""
    tensor: Any = sys.modules.get("torch.distributed.tensor")
    return tensor is not None and isinstance(value, tensor.DTensor)


def local_piece(tensor: Tensor) -> Tensor:
    """Return the piece that this process has of a tensor, which shares its memory; a plain tensor as it is."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def version_of(tensor: Tensor) -> int:
    """Return a number that grows with each change in place that torch notes; without it, values would be compared."""
    return cast("int", _private(tensor, "_version"))


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
    compute = _of_module("torch.distributed.tensor._utils", "_compute_local_shape_and_global_offset")
    return cast("tuple[Any, Any]", compute(shape, mesh_shape, list(coordinate), placements))


def chunks_of(tensor: DTensor) -> list[ChunkStorageMetadata]:
    """Return what this process has of a tensor, in the terms of torch's checkpoint engine."""
    return cast("list[ChunkStorageMetadata]", _private(tensor, "__create_chunk_list__")())
