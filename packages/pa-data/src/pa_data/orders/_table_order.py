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
_DRAWS = -4  # extends the key of an epoch for draws in its table


class TableOrder(Order):
    """Base class of custom orders that return the samples of a whole epoch as a table.

    Derive from it, set ``name``, and implement ``indices_of_epoch``; override ``length_of_epoch`` if an epoch does not
    have as many samples as the dataset. Pass an instance as ``order`` to a ``KeyedDataLoader``. Change the name
    whenever you change the order, because saved states identify the order by its name. The public attributes of an
    instance are its ``parameters``, unless you override that method.

    The table must depend only on the arguments, the parameters, and the global random number generators of Python,
    NumPy and torch. These are seeded from the seed and the epoch before the call, and restored afterwards. So
    ``torch.randperm(num_samples)`` gives each epoch its own permutation, which is the same on every process and after a
    resume. The numbers of an unseeded ``numpy.random.default_rng()`` differ between processes.

    A table takes 8 bytes for each sample, and is computed again when a run resumes.

    Example:
        >>> import torch
        >>> from torch import Tensor
        >>> from pa_data import KeyedDataLoader
        >>> from pa_data.orders import TableOrder
        >>> class LongestFirst(TableOrder):
        ...     name = "longest-first-v1"
        ...
        ...     def __init__(self, lengths: list[int]) -> None:
        ...         self.lengths = torch.tensor(lengths)
        ...
        ...     def indices_of_epoch(self, num_samples: int, epoch: int) -> Tensor:
        ...         shuffled = torch.randperm(num_samples)
        ...         return shuffled[self.lengths[shuffled].argsort(descending=True)]
        >>> loader = KeyedDataLoader(range(3), batch_size=3, order=LongestFirst([3, 9, 4]))
        >>> list(loader)
        [tensor([1, 2, 0])]
    """

    @abstractmethod
    def indices_of_epoch(self, num_samples: int, epoch: int) -> Tensor | Sequence[int]:
        """Return the samples of an epoch in their order. Derived classes implement this method.

        It is called on every process when the first batch of an epoch is needed, and again when a run resumes in the
        epoch. Use only the arguments, the parameters of the order, and the global random number generators of Python,
        NumPy and torch, which are seeded from the seed and the epoch before the call and restored afterwards.

        Args:
            num_samples: The number of samples of the dataset.
            epoch: The epoch number, from 0.

        Returns:
            Integers from 0 to ``num_samples - 1`` in one dimension, as many as ``length_of_epoch`` returns: a tensor,
            an array, a list or a range. A sample may be missing, or appear several times, with different random
            augmentation each time. For other values, the loader raises a ``TypeError``, or a ``DataError`` if they are
            out of range or their number is wrong.

        Example:
            >>> from collections.abc import Sequence
            >>> from pa_data.orders import TableOrder
            >>> class EvenSamples(TableOrder):
            ...     name = "even-samples-v1"
            ...     def indices_of_epoch(self, num_samples: int, epoch: int) -> Sequence[int]:
            ...         return range(0, num_samples, 2)
            ...     def length_of_epoch(self, num_samples: int, epoch: int) -> int:
            ...         return len(range(0, num_samples, 2))
            >>> EvenSamples().epoch_order(5, seed=0, epoch=0).indices(0, 3)
            tensor([0, 2, 4])
        """

    def length_of_epoch(self, num_samples: int, epoch: int) -> int:
        """Return the number of samples of an epoch. Override it if it is not the number of samples of the dataset.

        It is called when an epoch is chosen, before ``indices_of_epoch`` and much more often, so it should be fast. It
        must not depend on random numbers, which are not seeded for it. By default it returns ``num_samples``.

        Args:
            num_samples: The number of samples of the dataset.
            epoch: The epoch number, from 0.

        Returns:
            The number of samples that ``indices_of_epoch`` returns for this epoch, at least 1. A smaller number raises
            a ``DataError``.

        Example:
            >>> from collections.abc import Sequence
            >>> from pa_data.orders import TableOrder
            >>> class FirstHundred(TableOrder):
            ...     name = "first-hundred-v1"
            ...     def indices_of_epoch(self, num_samples: int, epoch: int) -> Sequence[int]:
            ...         return range(100)
            ...     def length_of_epoch(self, num_samples: int, epoch: int) -> int:
            ...         return 100
            >>> FirstHundred().epoch_order(5000, seed=0, epoch=0).num_samples
            100
        """
        return num_samples

    @override
    def epoch_order(self, num_samples: int, *, seed: int, epoch: int) -> EpochOrder:
        """Return the order of an epoch, whose table ``indices_of_epoch`` makes when it is first needed.

        A loader calls it when an epoch is chosen, with the length of its dataset; you call it to look at the order.
        Implement ``indices_of_epoch``, and do not override this method.

        Args:
            num_samples: The number of samples of the dataset.
            seed: The seed of the run, on which the random numbers of the table depend.
            epoch: The epoch number, from 0.

        Returns:
            The order of the epoch. Its ``indices`` raises a ``TypeError`` or a ``DataError`` for a table with wrong
            indices.

        Raises:
            DataError: ``length_of_epoch`` has not returned a whole number of at least 1.

        Example:
            >>> from collections.abc import Sequence
            >>> from pa_data.orders import TableOrder
            >>> class Backwards(TableOrder):
            ...     name = "backwards-v1"
            ...     def indices_of_epoch(self, num_samples: int, epoch: int) -> Sequence[int]:
            ...         return range(num_samples - 1, -1, -1)
            >>> Backwards().epoch_order(3, seed=0, epoch=0).indices(0, 3)
            tensor([2, 1, 0])
        """
        return _Table(self, num_samples, seed=seed, epoch=epoch)


class _Table(ChunkedEpoch):
    algorithm = "table-v1"
    repeats = True  # it may, which need not be checked

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
    """Return the checked length of an epoch."""
    length = order.length_of_epoch(num_samples, epoch)
    check_count(f"{type(order).__name__}.length_of_epoch() in epoch {epoch}", length)
    return length
