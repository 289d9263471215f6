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

    Pass an instance of a derived class, such as ``Shuffled`` or ``Weighted``, as ``order`` to a ``KeyedDataLoader``. An
    order has no state, because its results depend only on its parameters, the seed and the epoch. So any process can
    compute any part of any epoch, at any time, and a run can resume at any position. For a custom order, derive from
    ``TableOrder``, which is simpler; derive from this class, set ``name`` and implement ``epoch_order`` if a table of
    an epoch is too large.

    Attributes:
        name: The versioned name of the order, for example ``"shuffled-v1"``. A derived class must set it, and change it
            whenever it changes the order.
        makes_batches: Whether its epochs define where batches end, in ``EpochOrder.batch_ends``. A loader then has no
            batch size. False by default.
        equal_epochs: Whether all epochs have as many samples and batches as the first. False by default. Set it to True
            if they have, since otherwise a program that plans a whole run computes the length of each epoch at the
            start.
        ascends: Whether samples come in the order of the dataset, the only order in which an ``IterableDataset`` can be
            read. False by default.
        is_plain: Whether each sample comes once, shuffled or in sequence, so that the ``shuffle`` argument of a loader
            can describe the order. False by default.

    Example:
        >>> import torch
        >>> from torch import Tensor
        >>> from pa_data import KeyedDataLoader
        >>> from pa_data.orders import EpochOrder, Order
        >>> class ReversedEpoch(EpochOrder):
        ...     algorithm = "reversed-v1"
        ...     def compute_indices(self, start: int, stop: int) -> Tensor:
        ...         return self.num_samples - 1 - torch.arange(start, stop)
        >>> class Reversed(Order):
        ...     name = "reversed-v1"
        ...     equal_epochs = True
        ...     def epoch_order(self, num_samples: int, *, seed: int, epoch: int) -> EpochOrder:
        ...         return ReversedEpoch(num_samples, seed=seed, epoch=epoch)
        >>> [batch.tolist() for batch in KeyedDataLoader(range(5), batch_size=3, order=Reversed())]
        [[4, 3, 2], [1, 0]]
    """

    name: ClassVar[str]
    makes_batches: ClassVar[bool] = False
    equal_epochs: ClassVar[bool] = False
    ascends: ClassVar[bool] = False
    is_plain: ClassVar[bool] = False

    @abstractmethod
    def epoch_order(self, num_samples: int, *, seed: int, epoch: int) -> EpochOrder:
        """Return the order of an epoch; a derived class implements it.

        A loader calls it on every process when it is created (for epoch 0) and whenever an epoch is chosen, including
        in a resumed run. The result must depend only on the arguments and the parameters of the order, and must be the
        same on every process. Return quickly, and compute positions later in ``EpochOrder.compute_indices``.

        Args:
            num_samples: The number of samples of the dataset.
            seed: The seed of the run.
            epoch: The epoch number, from 0.

        Returns:
            The order, from which any positions can be requested.

        Raises:
            DataError: The order belongs to a dataset of a different length. Implementations that have a value for each
                sample raise it.

        Example:
            >>> import torch
            >>> from torch import Tensor
            >>> from pa_data.orders import EpochOrder, Order
            >>> class RotatedEpoch(EpochOrder):  # epoch 2 begins with sample 2
            ...     algorithm, first = "rotated-v1", 0
            ...     def compute_indices(self, start: int, stop: int) -> Tensor:
            ...         return (torch.arange(start, stop) + self.first) % self.num_samples
            >>> class Rotated(Order):
            ...     name = "rotated-v1"
            ...     equal_epochs = True
            ...     def epoch_order(self, num_samples: int, *, seed: int, epoch: int) -> EpochOrder:
            ...         order = RotatedEpoch(num_samples, seed=seed, epoch=epoch)
            ...         order.first = epoch
            ...         return order
            >>> Rotated().epoch_order(4, seed=0, epoch=2).indices(0, 4)
            tensor([2, 3, 0, 1])
        """

    def takes_each_once(self, num_samples: int) -> bool:
        """Return whether each epoch visits each sample of the dataset exactly once, in batches of any size.

        You call it to find out whether an order could be replaced by any other without changing which samples an epoch
        has. ``Mixture`` calls it for the ``default_order`` of its datasets. The result is based on the first epoch of
        seed 0, so a custom order whose epochs differ should override the method.

        Args:
            num_samples: The number of samples of the dataset.

        Returns:
            True if the order only decides when a sample comes. False if it may repeat or leave out samples, or makes
            batches.

        Raises:
            DataError: The order belongs to a dataset of a different length.

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

        You need not call it; ``fingerprint`` calls it once. By default the parameters are the public attributes of this
        object. Override the method if the order depends on anything else, for example on private attributes. Tensors,
        arrays, numbers, strings, functions, which are identified by name, and lists and dictionaries of all these are
        supported.

        Returns:
            The parameters. An empty mapping means that the name alone identifies the order.

        Example:
            >>> from pa_data.orders import Order, epoch_order
            >>> class EveryOther(Order):
            ...     name = "every-other-v1"
            ...     def __init__(self, first: int) -> None:
            ...         self.first = first
            ...     def epoch_order(self, num_samples, *, seed, epoch):
            ...         return epoch_order(num_samples // 2, seed=seed, epoch=epoch)
            >>> EveryOther(first=1).parameters()
            {'first': 1}
        """
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    @property
    def fingerprint(self) -> str:
        """The name, and a digest of the parameters. Orders with the same fingerprint have the same epochs.

        A text such as ``"shuffled-v1"`` or ``"token-budget-v1 a34950954dd6"``, the same in every process and on every
        machine. ``KeyedDataLoader.state_dict`` saves it, and ``load_state_dict`` compares it, so a run cannot resume in
        a different order. It is computed once, so do not change the order afterwards. A parameter of a gigabyte takes
        about a second.

        Raises:
            TypeError: A parameter is an object of an unsupported class. Override ``parameters`` then.
        """
        return self._identity

    @cached_property
    def _identity(self) -> str:
        return fingerprint(self.name, self.parameters())
