"""Tensors that are split over processes: whether one is, and the piece of this process.

Torch's modules for them are slow to import. If nobody has imported them, nothing is split.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = [
    "is_sharded",
    "is_sharded_module",
    "is_unit",
    "local_piece",
    "local_pieces",
    "reshard",
    "whole_tensor",
]


def is_sharded(value: object) -> TypeGuard[DTensor]:
    """Whether a value is a ``DTensor``, of which each process has a piece."""
    tensor: Any = sys.modules.get("torch.distributed.tensor")
    return tensor is not None and isinstance(value, tensor.DTensor)


def is_sharded_module(module: nn.Module) -> bool:
    """Whether some parameter of a module is split over processes, even if it is whole between two passes."""
    return any(map(is_unit, module.modules())) or any(map(is_sharded, module.parameters()))


def is_unit(module: nn.Module) -> bool:
    """Whether a module is one that ``fully_shard`` was called for."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def reshard(module: nn.Module) -> None:
    """Let each process have nothing but its pieces, which exchanges nothing; a plain module stays as it is.

    After a forward pass without a backward pass, such as one of an evaluation, the parameters outside of the blocks
    are still whole: what is written to them, or set on them, would not reach the pieces.

    Args:
        module: A module, sharded or not.
    """
    for unit in filter(is_unit, module.modules()):
        cast("Any", unit).reshard()


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
    if not is_sharded(tensor):
        return tensor
    device_type = tensor.device_mesh.device_type
    if tensor.device.type != device_type:  # offloaded to the host, where the processes may not be able to exchange it
        tensor = cast("DTensor", tensor.to(device_type))
    return tensor.full_tensor()
