"""The base of all orders: it returns the order of any epoch, and has an identity by which a run resumes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

from pa_data.orders._epoch_order import EpochOrder
from pa_data.orders._fingerprint import fingerprint

__all__ = ["Order"]


class Order(ABC):
    """Base class of the orders in which a run visits the samples of a dataset, epoch by epoch.

    An order has no state: its results depend only on its parameters, the seed and the epoch. So any process can compute
    any part of any epoch, at any time, and a run can resume at any position. For a custom order, derive from
    ``TableOrder``, which is simpler; derive from this class if a table of an epoch is too large.

    Attributes:
        name: The versioned name of the order, for example ``"shuffled-v1"``. Its meaning never changes.
        makes_batches: Whether its epochs say where batches end, in ``EpochOrder.batch_ends``. A loader then has no
            batch size.
        equal_epochs: Whether all epochs have as many samples and batches as the first. Otherwise a run computes the
            lengths of all its epochs when it begins.
        ascends: Whether samples come in the order of the dataset, the only order in which a stream can be read.
        is_plain: Whether each sample comes once, shuffled or in sequence, so that ``shuffle`` of a loader can stand for
            it.

    Example:
        >>> from pa_data.orders import Shuffled
        >>> sorted(Shuffled().epoch_order(4, seed=0, epoch=2).indices(0, 4).tolist())
        [0, 1, 2, 3]
    """

    name: ClassVar[str]
    makes_batches: ClassVar[bool] = False
    equal_epochs: ClassVar[bool] = False
    ascends: ClassVar[bool] = False
    is_plain: ClassVar[bool] = False

    @abstractmethod
    def epoch_order(self, num_samples: int, *, seed: int, epoch: int) -> EpochOrder:
        """Return the order of an epoch.

        Args:
            num_samples: The number of samples of the dataset.
            seed: The seed of the run.
            epoch: The number of the epoch, from 0.

        Returns:
            The order, from which any positions can be requested.

        Raises:
            DataError: The order belongs to a dataset of a different length.

        Example:
            >>> from pa_data.orders import Sequential
            >>> Sequential().epoch_order(4, seed=0, epoch=2).indices(1, 3)
            tensor([1, 2])
        """

    def takes_each_once(self, num_samples: int) -> bool:
        """Return whether each epoch visits each sample of the dataset exactly once, in batches of any size.

        Args:
            num_samples: The number of samples of the dataset.

        Returns:
            True if the order only decides when a sample comes.

        Example:
            >>> from pa_data.orders import Shuffled, Weighted
            >>> Shuffled().takes_each_once(3), Weighted([1.0, 2.0, 2.0]).takes_each_once(3)
            (True, False)
        """
        if self.makes_batches:
            return False
        epoch = self.epoch_order(num_samples, seed=0, epoch=0)
        return epoch.num_samples == num_samples and not epoch.repeats

    def parameters(self) -> Mapping[str, object]:
        """Return the parameters of the order, by name. Together with ``name`` they identify it in saved states.

        By default they are the public attributes of this object. Override the method if the order depends on anything
        else. Tensors, arrays, numbers, strings, functions, which are identified by name, and lists and dictionaries of
        all these are supported.

        Returns:
            The parameters.

        Example:
            >>> from pa_data.orders import LengthGrouped
            >>> LengthGrouped([3, 90, 4, 80], group_size=2).parameters()["group_size"]
            2
        """
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    @property
    def fingerprint(self) -> str:
        """The name, and a digest of the parameters: orders with the same fingerprint have the same epochs.

        It is computed once. A parameter of a gigabyte takes about a second.

        Raises:
            TypeError: A parameter is an object of an unsupported class.
        """
        return self._identity

    @cached_property
    def _identity(self) -> str:
        return fingerprint(self.name, self.parameters())
