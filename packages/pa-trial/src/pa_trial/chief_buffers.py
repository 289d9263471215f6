"""Buffers of models, such as the running statistics of BatchNorm: all processes follow the chief's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from pa_distributed import RanksDifferError, require_same
from pa_trial._torch import BUFFERS
from pa_trial.collectives import Packet

_Shapes: TypeAlias = dict[str, tuple[torch.Size, torch.dtype]]
"""The shape and the dtype of each buffer, by its name."""


class ChiefBuffers:
    """Gives every process the buffers of the chief's models.

    Args:
        models: The models, the same ones on each process, whose buffers have the same shapes when training begins.
        device: The device of the training.
    """

    def __init__(self, models: Sequence[nn.Module], device: torch.device) -> None:
        self._models = models
        self._device = device
        self._places: dict[str, tuple[dict[str, Any], str]] = {}
        self._shapes: _Shapes = {}
        self._packet: Packet | None = None
        self.find()

    def find(self) -> None:
        """Look again for the modules that have buffers; what they hold is looked at each time."""
        self._places = {
            f"model {number}: {f'{path}.{name}'.lstrip('.')}": (vars(module)[BUFFERS], name)
            for number, model in enumerate(self._models)
            for path, module in cast("Iterable[tuple[str, nn.Module]]", model.named_modules())  # annotated in part
            for name in vars(module)[BUFFERS]
        }

    def follow_chief(self) -> None:
        """Copy what the chief has, in one exchange; every process must call this.

        Raises:
            RanksDifferError: Buffers on the CPU have other shapes than on other processes, whom gloo would abort.
        """
        if not self._places:
            return
        held = {label: buffers.get(name) for label, (buffers, name) in self._places.items()}
        buffers: dict[str, Tensor] = {label: one for label, one in held.items() if one is not None}
        shapes = {label: (one.shape, one.dtype) for label, one in buffers.items()}
        packet, changed = self._packet, shapes != self._shapes
        if packet is None or (changed and self._device.type != "cpu"):
            packet, changed = self._pack(buffers, shapes), False
        if packet.follow_chief([*buffers.values()], fits=not changed):
            if changed:
                raise _changed_here(_texts(self._shapes), _texts(shapes))
        else:
            require_same(_texts(shapes))
            self._pack(buffers, shapes).follow_chief([*buffers.values()])

    def _pack(self, buffers: dict[str, Tensor], shapes: _Shapes) -> Packet:
        self._shapes, self._packet = shapes, Packet([*buffers.values()], self._device)
        return self._packet


def _texts(shapes: _Shapes) -> dict[str, str]:
    return {label: f"{tuple(shape)} of {dtype}" for label, (shape, dtype) in shapes.items()}


def _changed_here(before: dict[str, str], now: dict[str, str]) -> RanksDifferError:
    changed = [name for name in before | now if before.get(name) != now.get(name)]
    return RanksDifferError(
        "Buffers of a model changed their shapes on this process, but not on the first one.",
        given=", ".join(f"{name}: {now.get(name)}, before {before.get(name)}" for name in changed),
        do="Let buffers grow in the same way on all processes, or keep values of one process in a plain attribute.",
    )
