"""Copies the weights and buffers of models, such as BatchNorm statistics, from the chief to all processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pa_distributed import RanksDifferError, require_same
from pa_trial._torch import BUFFERS, foreach

_collectives: Any = dist  # torch annotates only some of its collectives
_ALIGNMENT = 16
"""The size of the largest numbers of torch, in bytes."""

_Shapes: TypeAlias = dict[str, tuple[torch.Size, torch.dtype]]
"""The shape and the dtype of each buffer, by its name."""


class ChiefBuffers:
    """Gives every process the buffers of the chief's models.

    Args:
        models: The models, the same on each process. Their buffers have the same shapes when training begins.
        device: The device of the training.
    """

    def __init__(self, models: Sequence[nn.Module], device: torch.device) -> None:
        self._models = models
        self._device = device
        self._places: dict[str, tuple[dict[str, Any], str]] = {}
        self._shapes: _Shapes = {}
        self._packet: _Packet | None = None
        self.find()

    def find(self) -> None:
        """Find the modules that have buffers; the buffers themselves are looked up each time."""
        self._places = {
            f"model {number}: {f'{path}.{name}'.lstrip('.')}": (vars(module)[BUFFERS], name)
            for number, model in enumerate(self._models)
            for path, module in cast(
                "Iterable[tuple[str, nn.Module]]", model.named_modules()
            )  # torch annotates it only partly
            for name in vars(module)[BUFFERS]
        }

    def follow_chief(self) -> None:
        """Copy the buffers of the chief in a single exchange; every process must call this.

        Raises:
            RanksDifferError: Buffers on the CPU have different shapes on some processes, so gloo would abort the
                processes.
        """
        if not self._places:
            return
        held = {label: buffers.get(name) for label, (buffers, name) in self._places.items()}
        buffers: dict[str, Tensor] = {label: buffer for label, buffer in held.items() if buffer is not None}
        shapes = {label: (buffer.shape, buffer.dtype) for label, buffer in buffers.items()}
        packet, changed = self._packet, shapes != self._shapes
        if packet is None or (changed and self._device.type != "cpu"):
            packet, changed = self._pack(buffers, shapes), False
        if packet.follow_chief([*buffers.values()], fits=not changed):
            if changed:
                raise _changed_here(_texts(self._shapes), _texts(shapes))
        else:
            require_same(_texts(shapes))
            self._pack(buffers, shapes).follow_chief([*buffers.values()])

    def _pack(self, buffers: dict[str, Tensor], shapes: _Shapes) -> _Packet:
        self._shapes, self._packet = shapes, _Packet([*buffers.values()], self._device)
        return self._packet


def _texts(shapes: _Shapes) -> dict[str, str]:
    return {label: f"{tuple(shape)} of {dtype}" for label, (shape, dtype) in shapes.items()}


def _changed_here(before: dict[str, str], now: dict[str, str]) -> RanksDifferError:
    changed = [name for name in before | now if before.get(name) != now.get(name)]
    found = ", ".join(f"{name}: {now.get(name)}, before {before.get(name)}" for name in changed)
    return RanksDifferError(
        f"Buffers of a model changed their shapes on this process, but not on the first process: {found}. Let buffers "
        "grow in the same way on all processes, or keep values of a single process in a plain attribute."
    )


def broadcast(tensors: Sequence[Tensor], device: torch.device) -> None:
    """Give every process the values of rank zero.

    Args:
        tensors: Tensors of the same shapes and dtypes on each process, in the same order.
        device: The device of the training.
    """
    if dist.is_initialized():  # else, training raises the error
        _Packet(tensors, device).follow_chief(tensors)


class _Packet:
    """A tensor of bytes in which tensors of any dtypes are sent together.

    Args:
        tensors: The tensors to send: on each process of the same shapes and dtypes, in the same order.
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
        """Give every process the values of rank zero; every process must call this.

        Args:
            tensors: Tensors with the shapes and dtypes that the packet was made for.
            fits: False if the tensors of this process have other shapes or dtypes by now; they are not changed then.

        Returns:
            Whether the tensors of rank zero fit; if not, nothing is copied. On a GPU always True, to avoid waiting for
            it.
        """
        is_chief = dist.get_rank() == 0
        if is_chief:
            self._refusal.fill_(not fits)
        if is_chief and fits and self._pieces:
            foreach("copy_", self._pieces, tensors)
        _collectives.broadcast(self._bytes, src=0)
        given = self._bytes.device.type != "cpu" or not self._refusal[0]
        if given and fits and self._pieces and not is_chief:
            foreach("copy_", tensors, self._pieces)
        return given
