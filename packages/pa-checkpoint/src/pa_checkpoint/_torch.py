"""The parts of torch without a public name, and tensors that are split over processes.

Torch's modules for split tensors are slow to import. As long as no other module has imported them, no tensor is split.
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
"""The attribute of ``SequentialLR`` and ``ChainedScheduler`` with their schedulers, which has no public name."""

_OLDEST_TRIED: Final = "2.11"
_NEWEST_TRIED: Final = "2.15"
_MISSING: Final = object()


def _private(owner: object, name: str) -> Any:
    """Return an attribute with a private name.

    Raises:
        CheckpointError: This version of torch has no such attribute.
    """
    found = getattr(owner, name, _MISSING)
    if found is _MISSING:
        raise _missing(f"{getattr(owner, '__name__', type(owner).__name__)}.{name}")
    return found


def _of_module(module: str, name: str) -> Any:
    """Return a private name of a torch module."""
    try:
        return _private(importlib.import_module(module), name)
    except ImportError as error:
        raise _missing(module) from error


def _missing(name: str) -> CheckpointError:
    """Return the error about a name that this version of torch lacks."""
    return CheckpointError(
        "This checkpoint needs a part of torch that has no public name, and that this version of torch does not have.",
        given=f"torch {torch.__version__}, without {name}",
        expected=f"a version that was tried: torch {_OLDEST_TRIED} to {_NEWEST_TRIED}",
        do=f'Run pip install "torch=={_NEWEST_TRIED}.*". A newer pa-checkpoint may know newer versions.',
    )


def is_sharded(value: object) -> TypeGuard[DTensor]:
    """Return whether a value is a ``DTensor``, which is split over processes."""
    tensor: Any = sys.modules.get("torch.distributed.tensor")
    return tensor is not None and isinstance(value, tensor.DTensor)


def local_piece(tensor: Tensor) -> Tensor:
    """Return the piece of a tensor that this process holds, in the same memory; return a plain tensor unchanged."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def version_of(tensor: Tensor) -> int:
    """Return a number that grows with each in-place change that torch records. Without it, values would be compared."""
    return cast("int", _private(tensor, "_version"))


def local_shape_and_offset(
    shape: tuple[int, ...], mesh_shape: tuple[int, ...], coordinate: tuple[int, ...], placements: tuple[Any, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shape and offsets of the piece that any process holds; torch has a public function for this process only.

    Args:
        shape: The shape of the whole tensor.
        mesh_shape: The shape of the mesh.
        coordinate: The position of the process in the mesh.
        placements: How each dimension of the mesh splits the tensor.
    """
    compute = _of_module("torch.distributed.tensor._utils", "_compute_local_shape_and_global_offset")
    return cast("tuple[Any, Any]", compute(shape, mesh_shape, list(coordinate), placements))


def chunks_of(tensor: DTensor) -> list[ChunkStorageMetadata]:
    """Return the pieces that this process holds, in the terms of torch's checkpoint engine."""
    return cast("list[ChunkStorageMetadata]", _private(tensor, "__create_chunk_list__")())
