"""The source at each position in an epoch: a fixed number of samples of each source, spread evenly and at random."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pa_data.orders._keyed_numbers import extend_keys
from pa_data.rng import extend_key

__all__ = ["Interleaving", "Stretch"]

_LENGTH = 4096
_PHASES = -1  # extends the key where no number of a stretch does


class Stretch(NamedTuple):
    """Some consecutive positions of an epoch.

    Attributes:
        taken: How many samples of each source come before the first position.
        sources: The source at each position.
        numbers: How many samples of that source come before the position.
    """

    taken: Tensor
    sources: Tensor
    numbers: Tensor

    @property
    def start(self) -> int:
        """The first position."""
        return int(self.taken.sum())


class Interleaving:
    """Spreads the samples of several sources over an epoch.

    The epoch is cut into stretches of about 4,096 positions. Each stretch has its share of every source, rounded so
    that all shares add up, and is shuffled. The number of samples of a source that come before a stretch is the result
    of a division, so any position is found without computing the positions before it.

    Args:
        counts: The number of samples of each source, as int64.
        key: The key of the epoch.

    Example:
        >>> epoch = Interleaving(torch.tensor([2, 4]), key=5)
        >>> epoch.stretch_at(3).sources.bincount().tolist()
        [2, 4]
    """

    def __init__(self, counts: Tensor, key: int) -> None:
        self._counts = counts
        self._key = key
        self._num_positions = int(counts.sum())
        self._num_stretches = max(1, -(-self._num_positions // _LENGTH))
        # Where the rounding of a source goes up; otherwise the only sample of each rare source would come mid-epoch.
        phases = extend_keys(extend_key(key, _PHASES), torch.arange(counts.numel()))
        self._phases = (phases >> 1 & (1 << 62) - 1) % self._num_stretches

    def stretch_at(self, position: int) -> Stretch:
        """Return the stretch that contains a position in the epoch."""
        number = position * self._num_stretches // self._num_positions
        while int(self._taken_before(number).sum()) > position:
            number -= 1
        while int(self._taken_before(number + 1).sum()) <= position:
            number += 1
        return self._stretch(number)

    def taken(self, stop: int) -> Tensor:
        """Return how many samples of each source come before a position, or in the whole epoch."""
        if stop == self._num_positions:
            return self._counts
        stretch = self.stretch_at(stop)
        return stretch.taken + stretch.sources[: stop - stretch.start].bincount(minlength=self._counts.numel())

    def _taken_before(self, number: int) -> Tensor:
        """Return how many samples of each source come before a stretch."""
        return (self._counts * number + self._phases) // self._num_stretches

    def _stretch(self, number: int) -> Stretch:
        """Return the stretch with a number."""
        taken = self._taken_before(number)
        counts = self._taken_before(number + 1) - taken
        in_turn = torch.arange(counts.numel()).repeat_interleave(counts)
        places = torch.arange(in_turn.numel())
        sources = in_turn[extend_keys(extend_key(self._key, number), places).argsort(stable=True)]
        numbers = torch.empty_like(sources)
        numbers[sources.argsort(stable=True)] = places + (taken - counts.cumsum(0) + counts)[in_turn]
        return Stretch(taken, sources, numbers)
