"""How tensors lie in memory: which can be stored, which are one and the same, and which strides to give them back."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from pa_core.storage.tensor_file import DTYPE_NAMES

__all__ = ["is_storable", "memory_of", "recorded_strides", "with_strides"]

_COMPLEX = frozenset({torch.complex64, torch.complex128})


def is_storable(tensor: Tensor) -> bool:
    """Whether the tensor has values of its own in memory, of a dtype that a file can hold."""
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


def recorded_strides(tensor: Tensor) -> tuple[int, ...] | None:
    """Return the strides where they are not the usual ones; None too where elements overlap in memory."""
    strides = tensor.stride()
    if strides == torch.empty(tensor.shape, device="meta").stride():
        return None
    reach = 0
    for stride, size in sorted(zip(strides, tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return None
        reach += stride * max(size - 1, 0)
    return strides


def with_strides(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Return the same values in memory that has these strides."""
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
