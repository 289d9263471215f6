"""How tensors lie in memory: which can be stored, which are one and the same, and which strides to give them back."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from pa_checkpoint._tensor_file import DTYPE_NAMES

__all__ = ["is_storable", "memory_of", "memory_of_piece", "recorded_strides", "with_strides"]

_WIDEST = 1 << 20  # bytes that a small tensor may extend over in memory, as a part of another one
_COMPLEX = frozenset({torch.complex64, torch.complex128})


def is_storable(tensor: Tensor) -> bool:
    """Whether the tensor has its own values in memory, of a dtype that a file can hold."""
    return (
        tensor.layout is torch.strided
        and not (tensor.is_meta or tensor.is_nested or tensor.is_quantized)
        and (tensor.dtype in DTYPE_NAMES or tensor.dtype in _COMPLEX)
        and (tensor.numel() == 0 or tensor.untyped_storage().nbytes() > 0)  # sharding frees memory now and then
    )


def memory_of(tensor: Tensor) -> Hashable:
    """Return a key that is equal for tensors that show the same memory in the same way, as tied weights do.

    It holds for as long as the tensors live.
    """
    if tensor.numel() == 0:  # it has no address
        return object()
    shown = (tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
    return (tensor.device, tensor.data_ptr(), *shown)


def memory_of_piece(piece: Tensor, whole: Sequence[int]) -> Hashable:
    """Return such a key of the piece that this process has of a sharded tensor.

    A piece without elements is told by its storage, so that tied weights are one on a process that has none of them,
    as on the others.

    Args:
        piece: The piece.
        whole: The shape of the whole tensor.
    """
    if piece.numel():
        return (memory_of(piece), tuple(whole))
    storage = piece.untyped_storage()
    return (piece.dtype, tuple(whole), storage, piece.storage_offset())


def recorded_strides(tensor: Tensor) -> tuple[int, ...] | None:
    """Return the strides where they are not the usual ones; None too where elements overlap in memory."""
    strides = tensor.stride()
    if strides == _usual_strides(tensor.shape) or _reach(tensor.shape, strides) is None:
        return None
    return strides


def _usual_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The ones of a new tensor, which torch takes ten times as long to tell."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _reach(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """How many elements after the first one the last one lies; None where elements overlap."""
    reach = 0
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1 and stride <= reach:
            return None
        reach += stride * max(size - 1, 0)
    return reach


def with_strides(tensor: Tensor, strides: Sequence[int]) -> Tensor:
    """Return the same values in memory that has these strides, or as they are where that would take too much.

    Raises:
        ValueError: No tensor of its shape has them, or its elements would overlap.
    """
    reach = _reach(tensor.shape, strides)
    if reach is None:
        message = f"the strides {strides} for a tensor of shape {tuple(tensor.shape)}"
        raise ValueError(message)
    if reach * tensor.element_size() > max(_WIDEST, 5 * tensor.nbytes):
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
