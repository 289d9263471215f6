"""Pickles of objects that are sent between processes, with tensors of every type."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override


class Portable:
    """Wraps an object so that it can be pickled even if it contains tensors of rare types; unpickling unwraps it.

    Python cannot unpickle tensors of unsigned 16 to 64-bit integers and of 8-bit floats, since torch has no storage
    class for these types. This class sends the bytes of such tensors instead.

    Args:
        value: A picklable object.

    Example:
        >>> pickle.loads(pickle.dumps(Portable([torch.tensor([1, 2], dtype=torch.uint16)])))
        [tensor([1, 2], dtype=torch.uint16)]
    """

    def __init__(self, value: object) -> None:
        self._value = value

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        content = io.BytesIO()
        _Pickler(content, pickle.HIGHEST_PROTOCOL).dump(self._value)
        return pickle.loads, (content.getvalue(),)


class _Pickler(pickle.Pickler):
    @override
    def reducer_override(self, obj: Any, /) -> Any:
        if type(obj) is Tensor and _lacks_storage(obj.dtype):
            own = obj.detach().contiguous()
            return _with_type, (own.view(-1).view(torch.uint8), obj.dtype, obj.shape)
        return NotImplemented


def _with_type(content: Tensor, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    """Return a tensor from its bytes."""
    return content.view(dtype).view(shape)


def _lacks_storage(dtype: torch.dtype) -> bool:
    """Return whether torch has no storage class for a type."""
    is_small_float = dtype.is_floating_point and dtype.itemsize == 1
    return is_small_float or dtype in (torch.uint16, torch.uint32, torch.uint64, torch.complex32)
