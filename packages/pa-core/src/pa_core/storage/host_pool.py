"""Copies of tensors in memory of the host that is used again and again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import torch
from torch import Tensor

from pa_core.storage.encoding import Encoded
from pa_core.storage.tensor_memory import memory_of

__all__ = ["HostPool"]


class HostPool:
    """Buffers in the host's memory that take a snapshot of tensors, the same ones for every snapshot.

    Allocating and first touching the memory takes longer than copying, so it is done once. What comes from CUDA is
    copied to pinned memory, by as many copies at a time as the device makes, with one wait at the end.

    A snapshot is overwritten by the next one: have whatever reads it finish first, with ``BackgroundWriter.wait``.

    Example:
        >>> from pa_core.storage import encode
        >>> weight, pool = torch.zeros(2), HostPool()
        >>> snapshot = pool.copy({"model": encode({"weight": weight}, "model")})
        >>> weight += 1
        >>> snapshot["model"].tensors
        {'model/weight': tensor([0., 0.])}
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, str], Tensor] = {}

    def copy(self, encoded: Mapping[str, Encoded]) -> dict[str, Encoded]:
        """Copy all tensors; those that share their memory share it in the copy as well.

        Returns when the copies are complete, so the originals may change at once.
        """
        previous, self._buffers = self._buffers, {}
        copies: dict[Hashable, Tensor] = {}
        snapshot: dict[str, Encoded] = {}
        for part, value in encoded.items():
            tensors: dict[str, Tensor] = {}
            for name, tensor in value.tensors.items():
                memory = memory_of(tensor)
                if memory not in copies:
                    buffer = _buffer_for(tensor, previous.get((part, name)))
                    self._buffers[part, name] = buffer
                    size = tensor.numel() * tensor.element_size()
                    copies[memory] = buffer[:size].view(tensor.dtype).view(tensor.shape)
                    copies[memory].copy_(tensor, non_blocking=_is_on_cuda(tensor))
                tensors[name] = copies[memory]
            snapshot[part] = Encoded(value.document, tensors)
        for device in {tensor.device for value in encoded.values() for tensor in value.tensors.values()}:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
        return snapshot


def _buffer_for(tensor: Tensor, buffer: Tensor | None) -> Tensor:
    """The buffer that was used before, if the tensor goes into it."""
    size = tensor.numel() * tensor.element_size()
    pinned = _is_on_cuda(tensor)
    if buffer is not None and buffer.numel() >= size and buffer.is_pinned() == pinned:
        return buffer
    return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pinned)


def _is_on_cuda(tensor: Tensor) -> bool:
    return tensor.device.type == "cuda"
