"""Schedulers that are not torch's: each is told something else."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from typing_extensions import override


class OfEpochs:
    """A scheduler that is told of epochs, and perhaps of a metric."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.told: list[Any] = []

    def step(self, epoch: int, metric: float | None = None) -> None:
        """Note what it is told."""
        self.told.append((epoch, metric))

    def state_dict(self) -> dict[str, Any]:
        """Return what it was told."""
        return {"told": self.told}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what it was told."""
        self.told = state_dict["told"]


class OfTwoMetrics(OfEpochs):
    """One that wants two metrics."""

    @override
    def step(self, loss: float, quality: float) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # another interface
        raise AssertionError


class Bare:
    """Neither ``step`` nor ``step_update``."""

    def __init__(self, optimizer: Optimizer) -> None:
        pass


class Timm(OfEpochs):
    """The interface of timm's schedulers."""

    def step_update(self, num_updates: int, metric: float | None = None) -> None:
        """Note the number of updates."""
        self.told.append(num_updates)
