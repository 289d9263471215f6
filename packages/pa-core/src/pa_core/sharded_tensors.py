"""Tensors that are split over processes: whether one is, and the piece of this process.

Torch's modules for them are slow to import. Where nobody has imported them, nothing is split.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = ["is_sharded", "is_sharded_module", "local_piece", "local_pieces", "whole_tensor"]


def is_sharded(value: object) -> TypeGuard[DTensor]:
    """Whether a value is a ``DTensor``, of which each process has a piece."""
    tensor: Any = sys.modules.get("torch.distributed.tensor")
    return tensor is not None and isinstance(value, tensor.DTensor)


def is_sharded_module(module: nn.Module) -> bool:
    """Whether some parameter of a module is split over processes."""
    return any(is_sharded(parameter) for parameter in module.parameters())


def local_piece(tensor: Tensor) -> Tensor:
    """Return the piece that this process has of a tensor, which shares its memory; a plain tensor as it is."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def local_pieces(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the piece that this process has of each tensor.

    Args:
        tensors: Split over processes, or plain ones.
    """
    return [local_piece(tensor) for tensor in tensors]


def whole_tensor(tensor: Tensor) -> Tensor:
    """Return all of a tensor; every process must call this for one that is split, and waits for the others."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor
