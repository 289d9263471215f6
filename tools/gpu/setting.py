"""What a part measures on, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Setting"]


@dataclass(frozen=True)
class Setting:
    """The device, and how long a part may take.

    Attributes:
        is_quick: Whether the smallest sizes are enough, to see that everything works.
    """

    is_quick: bool

    @property
    def on_cuda(self) -> bool:
        """Whether there is a CUDA device."""
        return torch.cuda.is_available()

    @property
    def is_small(self) -> bool:
        """Whether models are small: also on a CPU, where nobody waits for a ResNet-50."""
        return self.is_quick or not self.on_cuda

    @property
    def device(self) -> torch.device:
        """Where models and batches are."""
        return torch.device("cuda", torch.cuda.current_device()) if self.on_cuda else torch.device("cpu")

    @property
    def seconds_of_turn(self) -> float:
        """How long one turn of a loop is timed."""
        return 0.05 if self.is_small else 0.7

    @property
    def rounds(self) -> int:
        """How often each loop has its turn."""
        return 1 if self.is_small else 4
