"""The base class for custom orders: a table of the samples of an epoch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor
from typing_extensions import override

from pa_data.errors import DataError
from pa_data.orders._checks import check_count, checked_indices, column
from pa_data.orders._epoch_order import ChunkedEpoch, EpochOrder
from pa_data.orders._order import Order
from pa_data.rng import preserve_rng_state, seed_rng

__all__ = ["TableOrder"]

_WHAT_TO_RETURN = "Return integers, for example torch.randperm(num_samples), or mask.nonzero().squeeze(1) of a mask."
_DRAWS = -4  # extends the key of an epoch for what is drawn while its table is made


class TableOrder(Order):
    """A custom order: a subclass returns the samples of a whole epoch, one after the other.

    Give it a `name`, and a new one whenever you change what it does: saved states are known by it. The public
    attributes of an instance are its `parameters`, unless you override that.

    The table must follow from its arguments, the parameters and random numbers alone. The global generators of Python,
    NumPy and torch are seeded for the call from the seed of the run and the number of the epoch, and restored
    afterwards: ``torch.randperm(num_samples)`` gives each epoch its own permutation, the same one on every process and
    after a resume. An unseeded ``numpy.random.default_rng()`` does not.

    A table takes 8 bytes for each sample, and is made again where a run resumes.

    Example:
        >>> import torch
        >>> class LongestFirst(TableOrder):
        ...     name = "longest-first-v1"
        ...
        ...     def __init__(self, lengths: list[int]) -> None:
        ...         self.lengths = torch.tensor(lengths)
        ...
        ...     def indices_of_epoch(self, num_samples: int, epoch: int) -> Tensor:
        ...         shuffled = torch.randperm(num_samples)
        ...         return shuffled[self.lengths[shuffled].argsort(descending=True)]
        >>> order = LongestFirst([3, 9, 4])
        >>> order.epoch_order(3, seed=0, epoch=0).indices(0, 3)
        tensor([1, 2, 0])
    """

    @abstractmethod
    def indices_of_epoch(self, num_samples: int, epoch: int) -> Tensor | Sequence[int]:
        """Return which samples an epoch visits, in their order.

        Args:
            num_samples: The number of samples of the dataset.
            epoch: The number of the epoch, from 0.

        Returns:
            Integers from 0 to ``num_samples - 1``, as many as `length_of_epoch` says, in one dimension. A sample may
            come several times, and draws other random numbers each time, or not at all.
        """

    def length_of_epoch(self, num_samples: int, epoch: int) -> int:
        """Return how many samples an epoch visits; override it where they are more or fewer than the dataset has.

        Args:
            num_samples: The number of samples of the dataset.
            epoch: The number of the epoch, from 0.
        """
        return num_samples

    @override
    def epoch_order(self, num_samples: int, *, seed: int, epoch: int) -> EpochOrder:
        return _Table(self, num_samples, seed=seed, epoch=epoch)


class _Table(ChunkedEpoch):
    algorithm = "table-v1"
    repeats = True  # it may, and nobody has to look

    def __init__(self, order: TableOrder, num_samples: int, *, seed: int, epoch: int) -> None:
        super().__init__(_length(order, num_samples, epoch), seed=seed, epoch=epoch)
        self._order, self._of_dataset, self._epoch = order, num_samples, epoch

    @override
    def chunk_at(self, position: int) -> tuple[int, Tensor]:
        with preserve_rng_state():
            seed_rng(self._key, _DRAWS)
            given = self._order.indices_of_epoch(self._of_dataset, self._epoch)
        name = f"{type(self._order).__name__}.indices_of_epoch() in epoch {self._epoch}"
        table = column(name, given, do=_WHAT_TO_RETURN)
        if table.numel() != self.num_samples:
            raise DataError(
                f"An epoch has a different number of samples than was planned. Got {table.numel()} indices from "
                f"{name}, expected {self.num_samples}, as length_of_epoch() says. Override length_of_epoch() to "
                "return the number of indices of each epoch."
            )
        return 0, checked_indices(table, self._of_dataset, name, _WHAT_TO_RETURN)


def _length(order: TableOrder, num_samples: int, epoch: int) -> int:
    length = order.length_of_epoch(num_samples, epoch)
    check_count(f"{type(order).__name__}.length_of_epoch() in epoch {epoch}", length)
    return length
