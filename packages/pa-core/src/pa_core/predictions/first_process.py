"""Brings what each process has predicted to the first one, which may stop at any time."""

from __future__ import annotations

import io
import pickle
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from pa_core.distributed.collectives import num_processes, rank, values_of_all

__all__ = ["FirstProcess"]

_collectives: Any = dist  # torch annotates its collectives only in part


class FirstProcess:
    """What the first process and the others tell each other in each step of a prediction.

    Args:
        device: The device of the run.

    Example:
        >>> first = FirstProcess(torch.device("cpu"))
        >>> first.goes_on(), first.gather(torch.ones(2))
        (True, [tensor([1., 1.])])
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def goes_on(self, *, stops: bool = False) -> bool:
        """Whether there is another step, as the first process decides; every process must call this.

        Args:
            stops: Whether there is none, on the first process.
        """
        if num_processes() == 1:
            return not stops
        stop = torch.tensor([stops], dtype=torch.uint8, device=self._device)
        _collectives.broadcast(stop, src=0)
        return not bool(stop.item())

    def gather(self, predictions: object) -> list[Any]:
        """Return what each process has predicted, on the first one; nothing on the others. Every process must call it.

        Args:
            predictions: The predictions of this process: tensors on the CPU, and anything that can be pickled.
        """
        if num_processes() == 1:
            return [predictions]
        packed = _pack(predictions).to(self._device)
        sizes = cast("list[int]", values_of_all(torch.tensor([len(packed)], device=self._device)).flatten().tolist())  # pyright: ignore[reportUnknownMemberType]  # not annotated by torch
        padded = packed.new_zeros(max(sizes))
        padded[: len(packed)] = packed
        gathered = [torch.empty_like(padded) for _ in sizes] if rank() == 0 else None
        _collectives.gather(padded, gathered, dst=0)
        return [_unpack(one[:size].cpu()) for one, size in zip(gathered or [], sizes, strict=False)]


_LENGTH = 8


def _pack(value: object) -> Tensor:
    """The bytes of an object; the bytes of its tensors follow the rest, without a copy for pickle."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    pickled = file.getvalue()
    head = bytearray(len(pickled).to_bytes(_LENGTH, "little") + pickled)
    bytes_of_tensors = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in pickler.tensors]
    return torch.cat([torch.frombuffer(head, dtype=torch.uint8), *bytes_of_tensors])


def _unpack(packed: Tensor) -> Any:
    head = packed.numpy().data
    end = _LENGTH + int.from_bytes(head[:_LENGTH], "little")
    return _Unpickler(io.BytesIO(head[_LENGTH:end]), packed[end:]).load()


class _Pickler(pickle.Pickler):
    """Leaves out the content of tensors."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []
        self._size = 0

    @override
    def persistent_id(self, obj: Any) -> tuple[int, torch.dtype, tuple[int, ...]] | None:
        if type(obj) is not Tensor or obj.layout is not torch.strided or obj.is_quantized or obj.numel() == 0:
            return None
        self.tensors.append(obj)
        start, self._size = self._size, self._size + obj.numel() * obj.element_size()
        return start, obj.dtype, tuple(obj.shape)


class _Unpickler(pickle.Unpickler):
    """Puts the content of tensors back; it reads what another process of the run has sent, never a file."""

    def __init__(self, file: io.BytesIO, content: Tensor) -> None:
        super().__init__(file)
        self._content = content

    @override
    def persistent_load(self, pid: tuple[int, torch.dtype, tuple[int, ...]]) -> Tensor:
        start, dtype, shape = pid
        size = torch.Size(shape).numel() * dtype.itemsize
        # A copy, whose memory is aligned and does not keep that of everything else.
        return self._content[start : start + size].clone().view(dtype).reshape(shape)
