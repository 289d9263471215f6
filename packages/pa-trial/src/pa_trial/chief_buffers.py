"""Buffers of models, such as the running statistics of BatchNorm: all processes follow the chief's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["ChiefBuffers"]

_collectives: Any = dist  # torch annotates its collectives only in part
_copy_all: Any = cast("Any", torch)._foreach_copy_  # as torch's optimizers do; it has no public name
_ALIGNMENT = 16
"""In bytes: of the largest numbers that torch has."""


class ChiefBuffers:
    """Gives every process the buffers of the chief's models.

    Args:
        models: The models, the same ones on each process.
        is_chief: Whether this process is the chief.
    """

    def __init__(self, models: Sequence[nn.Module], *, is_chief: bool) -> None:
        self._models = models
        self._is_chief = is_chief
        self._places: list[tuple[dict[str, Any], str]] = []
        self._buffers: list[Tensor] = []
        self._packets: list[_Packet] = []
        self.find()

    def find(self) -> None:
        """Look again for the modules that have buffers; what they hold is looked at each time."""
        modules = dict.fromkeys(module for model in self._models for module in model.modules())
        self._places = [(module._buffers, name) for module in modules for name in module._buffers]  # pyright: ignore[reportPrivateUsage]  # each access by name costs a lookup

    def follow_chief(self) -> None:
        """Copy what the chief has, in one exchange for each device; every process must call this."""
        if not self._places:
            return
        buffers: list[Tensor] = [held[name] for held, name in self._places if held.get(name) is not None]
        if [id(buffer) for buffer in buffers] != [id(buffer) for buffer in self._buffers]:
            self._buffers = buffers
            self._packets = _pack({id(buffer): buffer for buffer in buffers}.values())
        for packet in self._packets:
            packet.follow_chief(is_chief=self._is_chief)


class _Packet:
    """The buffers of one device, side by side in one tensor of bytes, whatever their dtypes."""

    def __init__(self, buffers: list[Tensor]) -> None:
        self._buffers = buffers
        sizes = [-(-buffer.nbytes // _ALIGNMENT) * _ALIGNMENT for buffer in buffers]
        self._bytes = torch.zeros(sum(sizes), dtype=torch.uint8, device=buffers[0].device)
        self._pieces = [
            piece[: buffer.nbytes].view(buffer.dtype).view(buffer.shape)
            for piece, buffer in zip(torch.split(self._bytes, sizes), buffers, strict=True)
        ]

    @torch.no_grad()
    def follow_chief(self, *, is_chief: bool) -> None:
        if is_chief:
            _copy_all(self._pieces, self._buffers)
        _collectives.broadcast(self._bytes, src=0)
        if not is_chief:
            _copy_all(self._buffers, self._pieces)


def _pack(buffers: Iterable[Tensor]) -> list[_Packet]:
    grouped: dict[torch.device, list[Tensor]] = {}
    for buffer in buffers:
        grouped.setdefault(buffer.device, []).append(buffer)
    return [_Packet(members) for members in grouped.values()]
