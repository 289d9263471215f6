"""Epochs whose order is computed some positions at a time."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor
from typing_extensions import override

from pa_data.orders._epoch_order import EpochOrder

__all__ = ["ChunkedEpoch"]


class ChunkedEpoch(EpochOrder):
    """Computes the chunk that holds the requested positions, and keeps it for those that follow.

    Args:
        num_samples: The number of samples that the epoch visits.
        chunk: The number of positions that are computed at once.
        seed: The seed of the run.
        epoch: The number of the epoch.
    """

    def __init__(self, num_samples: int, chunk: int, *, seed: int, epoch: int) -> None:
        super().__init__(num_samples, seed=seed, epoch=epoch)
        self._chunk = chunk
        self._number, self._computed = -1, torch.empty(0, dtype=torch.int64)

    @abstractmethod
    def _compute(self, start: int, stop: int) -> Tensor:
        """Return the samples at the positions of a chunk."""

    @override
    def compute_indices(self, start: int, stop: int) -> Tensor:
        parts = [torch.empty(0, dtype=torch.int64)]
        for number in range(start // self._chunk, -(-stop // self._chunk)):
            first = number * self._chunk
            parts.append(self._chunk_of_number(number)[max(0, start - first) : stop - first])
        return torch.cat(parts)

    def _chunk_of_number(self, number: int) -> Tensor:
        if number != self._number:
            first = number * self._chunk
            self._computed = self._compute(first, min(first + self._chunk, self.num_samples))
            self._number = number
        return self._computed
