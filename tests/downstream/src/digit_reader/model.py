"""The network."""

from __future__ import annotations

from torch import Tensor, nn
from typing_extensions import override


class DigitNet(nn.Module):
    """A network with one hidden layer.

    Args:
        hidden: The number of its units.
    """

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.hidden: nn.Linear = nn.Linear(64, hidden)
        self.head: nn.Linear = nn.Linear(hidden, 10)

    @override
    def forward(self, pixels: Tensor) -> Tensor:
        logits: Tensor = self.head(self.hidden(pixels).relu())
        return logits
