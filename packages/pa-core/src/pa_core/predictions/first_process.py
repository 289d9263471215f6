"""Brings what each process has predicted to the first one, which may stop at any time."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from pa_core.distributed.collectives import broadcast_tensors, num_processes, rank

__all__ = ["gather_on_first", "goes_on"]

_collectives: Any = dist  # torch annotates its collectives only in part


def goes_on(device: torch.device, *, stops: bool = False) -> bool:
    """Whether there is another step, as the first process decides; every process must call this.

    Args:
        device: The device of the run.
        stops: Whether there is none, on the first process.
    """
    stop = torch.tensor([stops], device=device)
    if num_processes() > 1:
        broadcast_tensors([stop])
    return not bool(stop.item())


def gather_on_first(predictions: object) -> list[Any]:
    """Return what each process has predicted, on the first one; nothing on the others. Every process must call it.

    Args:
        predictions: The predictions of this process: tensors on the CPU, and anything that can be pickled.

    Example:
        >>> gather_on_first(torch.ones(2))
        [tensor([1., 1.])]
    """
    if num_processes() == 1:
        return [predictions]
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(predictions)
    gathered: list[Any] | None = [None] * num_processes() if rank() == 0 else None
    _collectives.gather_object(file.getvalue(), gathered)
    return [pickle.loads(one) for one in gathered or []]


class _Pickler(pickle.Pickler):
    """Leaves out the rest of what a tensor is a view of, such as the other tokens of a sequence."""

    @override
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor and obj.layout is torch.strided and obj.untyped_storage().nbytes() > obj.nbytes:
            whole: Any = obj.clone(memory_format=torch.contiguous_format)
            return whole.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return NotImplemented
