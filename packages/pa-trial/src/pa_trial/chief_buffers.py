"""Buffers of models, such as the running statistics of BatchNorm: all processes follow the chief's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from pa_core.parts import broadcast_tensors

__all__ = ["ChiefBuffers"]


class ChiefBuffers:
    """Gives every process the buffers of the chief's models.

    Args:
        models: The models, the same ones on each process.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._models = models
        self._places: list[tuple[dict[str, Any], str]] = []
        self.find()

    def find(self) -> None:
        """Look again for the modules that have buffers; what they hold is looked at each time."""
        modules = dict.fromkeys(module for model in self._models for module in model.modules())
        self._places = [(module._buffers, name) for module in modules for name in module._buffers]  # pyright: ignore[reportPrivateUsage]  # each access by name costs a lookup

    def follow_chief(self) -> None:
        """Copy what the chief has; every process must call this."""
        buffers: dict[int, Tensor] = {}
        for held, name in self._places:
            buffer = held.get(name)
            if buffer is not None:
                buffers[id(buffer)] = buffer
        if buffers:
            broadcast_tensors(buffers.values())
