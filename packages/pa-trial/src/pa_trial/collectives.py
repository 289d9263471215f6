"""What the processes of a training exchange besides gradients; on one process, nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pa_trial._torch import foreach

_collectives: Any = dist  # torch annotates its collectives only in part
_ALIGNMENT = 16
"""In bytes: of the largest numbers that torch has."""


def num_processes() -> int:
    """Return the number of processes, 1 where there is no process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, 0 where there is no process group."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def broadcast(tensors: Sequence[Tensor], device: torch.device) -> None:
    """Give every process the values that rank zero has.

    Args:
        tensors: Tensors of the same shapes and dtypes on each process, in the same order.
        device: The device of the training.
    """
    if num_processes() > 1:
        Packet(tensors, device).follow_chief(tensors)


class Packet:
    """Room for tensors of any dtypes side by side in one tensor of bytes, in which they travel together.

    Args:
        tensors: What travels: on each process of the same shapes and dtypes, in the same order.
        device: The device of the training.
    """

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        sizes = [-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors]
        self._bytes = torch.zeros(_ALIGNMENT + sum(sizes), dtype=torch.uint8, device=device)
        self._refusal, *pieces = torch.split(self._bytes, [_ALIGNMENT, *sizes])
        self._pieces = [
            piece[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            for piece, tensor in zip(pieces, tensors, strict=True)
        ]

    @torch.no_grad()
    def follow_chief(self, tensors: Sequence[Tensor], *, fits: bool = True) -> bool:
        """Give every process the values that rank zero has; every process must call this.

        Args:
            tensors: Such tensors as the packet was made for.
            fits: False if those of this process are of other shapes or dtypes by now; they are left alone.

        Returns:
            Whether those of rank zero fit; if not, nothing was given. True on a GPU, where telling it would be a wait.
        """
        is_chief = rank() == 0
        if is_chief:
            self._refusal.fill_(not fits)
        if is_chief and fits and self._pieces:
            foreach("copy_", self._pieces, tensors)
        _collectives.broadcast(self._bytes, src=0)
        given = self._bytes.device.type != "cpu" or not self._refusal[0]
        if given and fits and self._pieces and not is_chief:
            foreach("copy_", tensors, self._pieces)
        return given
