"""The orders that visit each sample once: shuffled in each epoch, or in the sequence of the dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from pa_data.orders._epoch_order import EpochOrder, epoch_order
from pa_data.orders._order import Order

__all__ = ["Sequential", "Shuffled"]


@dataclass(frozen=True)
class Shuffled(Order):
    """Visits each sample once per epoch, in a random order that differs between epochs.

    It is the usual order for training, and the default of a ``KeyedDataLoader`` with ``shuffle=True``. Pass it as
    ``order`` to shuffle a dataset that has a different ``default_order``, or to reproduce an earlier algorithm.

    Attributes:
        algorithm: The name of the permutation algorithm, as in ``EpochOrder.algorithm``. With None, the default, the
            algorithm depends on the number of samples: ``"randperm-v1"`` up to 10 million, and ``"feistel-v1"`` above.
            Pass a name to reproduce the order of an earlier run. ``epoch_order`` raises an error for an unknown name.

    Example:
        >>> from pa_data import KeyedDataLoader
        >>> from pa_data.orders import Shuffled
        >>> loader = KeyedDataLoader(range(3), batch_size=3, order=Shuffled())
        >>> [sorted(batch.tolist()) for batch in loader]
        [[0, 1, 2]]
    """

    name: ClassVar[str] = "shuffled-v1"
    equal_epochs: ClassVar[bool] = True
    is_plain: ClassVar[bool] = True
    algorithm: str | None = None

    @override
    def epoch_order(self, num_samples: int, *, seed: int, epoch: int) -> EpochOrder:
        """Return a random permutation of the samples, which depends on the seed and the epoch.

        A loader calls it when an epoch is chosen, with the length of its dataset; you call it to look at the order.
        Nothing is computed before ``EpochOrder.indices`` is called.

        Args:
            num_samples: The number of samples of the dataset, at least 0.
            seed: The seed of the run.
            epoch: The epoch number, from 0. Each epoch has a different permutation.

        Returns:
            The order of the epoch, with each sample once.

        Raises:
            DataError: ``algorithm`` is unknown, or ``num_samples`` is negative.

        Example:
            >>> from pa_data.orders import Shuffled
            >>> sorted(Shuffled().epoch_order(3, seed=0, epoch=1).indices(0, 3).tolist())
            [0, 1, 2]
        """
        return epoch_order(num_samples, seed=seed, epoch=epoch, algorithm=self.algorithm)

    @override
    def parameters(self) -> Mapping[str, object]:
        """Return the algorithm that you have chosen, if any; it identifies this order in saved states.

        You need not call it; ``fingerprint`` does.

        Returns:
            A mapping with ``"algorithm"``, or an empty mapping if you have not chosen an algorithm.

        Example:
            >>> from pa_data.orders import Shuffled
            >>> Shuffled().parameters(), Shuffled("feistel-v1").parameters()
            ({}, {'algorithm': 'feistel-v1'})
        """
        return {} if self.algorithm is None else {"algorithm": self.algorithm}


@dataclass(frozen=True)
class Sequential(Order):
    """Visits each sample once per epoch, in the order of the dataset.

    Use it for data whose order matters, and for datasets that are already shuffled. It is the default of a
    ``KeyedDataLoader`` with ``shuffle=False``, and the only order for an ``IterableDataset``. Pass it as ``order`` if
    the ``default_order`` of the dataset would otherwise be used.

    Example:
        >>> from pa_data import KeyedDataLoader
        >>> from pa_data.orders import Sequential
        >>> [batch.tolist() for batch in KeyedDataLoader(range(3), batch_size=2, order=Sequential())]
        [[0, 1], [2]]
    """

    name: ClassVar[str] = "sequential-v1"
    equal_epochs: ClassVar[bool] = True
    is_plain: ClassVar[bool] = True
    ascends: ClassVar[bool] = True

    @override
    def epoch_order(self, num_samples: int, *, seed: int, epoch: int) -> EpochOrder:
        """Return the order of the dataset itself, which is the same for every seed and epoch.

        A loader calls it when an epoch is chosen, with the length of its dataset; you call it to look at the order.

        Args:
            num_samples: The number of samples of the dataset, at least 0.
            seed: The seed of the run. It has no effect on the order.
            epoch: The epoch number, from 0. It has no effect on the order.

        Returns:
            The order of the epoch, with each sample once.

        Raises:
            DataError: ``num_samples`` is negative.

        Example:
            >>> from pa_data.orders import Sequential
            >>> Sequential().epoch_order(3, seed=0, epoch=1).indices(0, 3)
            tensor([0, 1, 2])
        """
        return epoch_order(num_samples, seed=seed, epoch=epoch, shuffle=False)
