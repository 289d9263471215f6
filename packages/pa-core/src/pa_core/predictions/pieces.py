"""Which samples each process predicts: pieces of the dataset, the same on any number of processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from pa_data.orders import EpochOrder, Order

__all__ = ["ChosenPieces", "Pieces"]


@dataclass(frozen=True)
class Pieces:
    """The samples of a dataset, cut into pieces of consecutive samples, and those into batches.

    Attributes:
        num_samples: The number of samples of the dataset, at least one.
        batch_size: The number of samples of each batch but perhaps the last one of the dataset.
        batches_per_piece: The number of batches of each piece but perhaps the last one.

    Example:
        >>> pieces = Pieces(num_samples=10, batch_size=2, batches_per_piece=2)
        >>> len(pieces), pieces.positions(2), list(pieces.batches(1))
        (3, range(8, 10), [range(4, 6), range(6, 8)])
    """

    num_samples: int
    batch_size: int
    batches_per_piece: int = 1

    @property
    def size(self) -> int:
        """The number of samples of each piece but perhaps the last one."""
        return self.batch_size * self.batches_per_piece

    def __len__(self) -> int:
        """Return the number of pieces."""
        return (self.num_samples + self.size - 1) // self.size

    def positions(self, piece: int) -> range:
        """Return the samples of a piece."""
        return range(piece * self.size, min((piece + 1) * self.size, self.num_samples))

    def batches(self, piece: int) -> Iterator[range]:
        """Iterate over the samples of each batch of a piece."""
        positions = self.positions(piece)
        starts = range(positions.start, positions.stop, self.batch_size)
        return (range(start, min(start + self.batch_size, positions.stop)) for start in starts)


@dataclass(frozen=True, eq=False)
class ChosenPieces(Order):
    """Some pieces of a dataset, one after the other; only the last one of them may be shorter than the others.

    Attributes:
        pieces: All pieces.
        numbers: The numbers of the chosen ones, in this order; int64, at least one.

    Example:
        >>> order = ChosenPieces(Pieces(num_samples=10, batch_size=4), torch.tensor([0, 2]))
        >>> order.epoch_order(10, seed=0, epoch=0).indices(2, 6).tolist()
        [2, 3, 8, 9]
    """

    name: ClassVar[str] = "chosen-pieces-v1"
    pieces: Pieces
    numbers: Tensor

    @override
    def epoch_order(self, num_samples: int, *, seed: int, epoch: int) -> EpochOrder:
        return _OrderOfChosen(self, seed=seed, epoch=epoch)

    @cached_property
    def num_samples(self) -> int:
        """The number of samples of the chosen pieces."""
        return (len(self.numbers) - 1) * self.pieces.size + len(self.pieces.positions(int(self.numbers[-1])))


class _OrderOfChosen(EpochOrder):
    algorithm: ClassVar[str] = ChosenPieces.name

    def __init__(self, chosen: ChosenPieces, *, seed: int, epoch: int) -> None:
        super().__init__(chosen.num_samples, seed=seed, epoch=epoch)
        self._numbers, self._size = chosen.numbers, chosen.pieces.size

    @override
    def compute_indices(self, start: int, stop: int) -> Tensor:
        positions = torch.arange(start, stop)
        return self._numbers[positions // self._size] * self._size + positions % self._size
