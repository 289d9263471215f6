"""Buffers of models, such as the running statistics of BatchNorm: all processes follow the chief's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pa_distributed import RanksDifferError, require_same
from pa_trial._torch import BUFFERS, foreach

_collectives: Any = dist  # torch annotates its collectives only in part
_ALIGNMENT = 16
"""In bytes: of the largest numbers that torch has."""


class ChiefBuffers:
    """Gives every process the buffers of the chief's models.

    Args:
        models: The models, the same ones on each process, whose buffers have the same shapes when training begins.
        is_chief: Whether this process is the chief.
    """

    def __init__(self, models: Sequence[nn.Module], *, is_chief: bool) -> None:
        self._models = models
        self._is_chief = is_chief
        self._places: list[tuple[str, dict[str, Any], str]] = []
        self._buffers: list[Tensor] = []
        self._shapes: dict[str, str] = {}
        self._packets: list[_Packet] = []
        self.find()

    def find(self) -> None:
        """Look again for the modules that have buffers; what they hold is looked at each time."""
        modules: dict[nn.Module, str] = {}
        for number, model in enumerate(self._models):
            of_model = cast("Iterable[tuple[str, nn.Module]]", model.named_modules())  # annotated in part
            modules |= {module: ".".join(filter(None, (f"model {number}", name))) for name, module in of_model}
        self._places = [
            (f"{label}.{name}", vars(module)[BUFFERS], name)
            for module, label in modules.items()
            for name in vars(module)[BUFFERS]
        ]

    def follow_chief(self) -> None:
        """Copy what the chief has, in one exchange for each device; every process must call this.

        Raises:
            RanksDifferError: Buffers on the CPU have other shapes than on other processes, whom gloo would abort.
        """
        if not self._places:
            return
        buffers: list[Tensor] = [held[name] for _, held, name in self._places if held.get(name) is not None]
        packets, changes = self._packets, False
        if [id(buffer) for buffer in buffers] != [id(buffer) for buffer in self._buffers]:
            self._buffers = buffers
            packets, shapes = _pack({id(buffer): buffer for buffer in buffers}.values()), self._find_shapes()
            changes = shapes != self._shapes and bool(self._packets) and self._packets[0].on_host
            if not changes:
                self._packets, self._shapes = packets, shapes
        if self._packets and self._packets[0].follow_chief(is_chief=self._is_chief, changes=changes):
            self._shapes = self._find_shapes()
            require_same(self._shapes)
            self._packets = packets
            self._packets[0].follow_chief(is_chief=self._is_chief)
        elif changes:
            raise _changed_here(self._shapes, self._find_shapes())
        for packet in self._packets[1:]:
            packet.follow_chief(is_chief=self._is_chief)

    def _find_shapes(self) -> dict[str, str]:
        held = {label: buffers.get(name) for label, buffers, name in self._places}
        return {label: f"{tuple(one.shape)} of {one.dtype}" for label, one in held.items() if one is not None}


class _Packet:
    """The buffers of one device, side by side in one tensor of bytes, for any dtypes."""

    def __init__(self, buffers: list[Tensor]) -> None:
        self._buffers = buffers
        sizes = [-(-buffer.nbytes // _ALIGNMENT) * _ALIGNMENT for buffer in buffers]
        self._bytes = torch.zeros(_ALIGNMENT + sum(sizes), dtype=torch.uint8, device=buffers[0].device)
        self._pieces = [
            piece[: buffer.nbytes].view(buffer.dtype).view(buffer.shape)
            for piece, buffer in zip(torch.split(self._bytes[_ALIGNMENT:], sizes), buffers, strict=True)
        ]
        self.on_host = self._bytes.device.type == "cpu"

    @torch.no_grad()
    def follow_chief(self, *, is_chief: bool, changes: bool = False) -> bool:
        """Copy what the chief has, and return whether its buffers have changed their shapes: then nothing is copied.

        What this process has is left alone where ``changes`` says that it no longer fits the packet.
        """
        if is_chief and not changes:
            foreach("copy_", self._pieces, self._buffers)
        if is_chief and self.on_host:
            self._bytes[0] = changes
        _collectives.broadcast(self._bytes, src=0)
        chief_changes = self.on_host and bool(self._bytes[0])
        if not (is_chief or changes or chief_changes):
            foreach("copy_", self._buffers, self._pieces)
        return chief_changes


def _pack(buffers: Iterable[Tensor]) -> list[_Packet]:
    grouped: dict[torch.device, list[Tensor]] = {}
    for buffer in buffers:
        grouped.setdefault(buffer.device, []).append(buffer)
    return [_Packet(members) for members in grouped.values()]


def _changed_here(before: dict[str, str], now: dict[str, str]) -> RanksDifferError:
    changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return RanksDifferError(
        "Buffers of a model changed their shapes on this process, but not on the first one.",
        given=", ".join(f"{name}: {now.get(name)}, before {before.get(name)}" for name in changed),
        do="Let buffers grow in the same way on all processes, or keep values of one process in a plain attribute.",
    )
