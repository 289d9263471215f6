"""What every order is: a recipe that gives the order of any epoch, and an identity by which a run is resumed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

from pa_data.orders._epoch_order import EpochOrder
from pa_data.orders._fingerprint import fingerprint

__all__ = ["Order"]


class Order(ABC):
    """The order in which a run visits the samples of a dataset, epoch by epoch.

    An order holds no state of a run: what it returns depends on its parameters, the seed and the epoch alone. So any
    process can compute any part of any epoch, at any time.

    Attributes:
        name: The versioned name of what it does, such as ``"shuffled-v1"``. What a name means never changes.
        makes_batches: Whether its epochs say which samples belong together in a batch, see `EpochOrder.batch_ends`.
            There is then no batch size to choose.
        equal_epochs: Whether all epochs have as many samples, and as many batches, as the first one. A run computes the
            lengths of all its epochs when it begins unless the order says so.
        ascends: Whether samples come in the order of the dataset, the only one in which a stream can be read.
        is_plain: Whether ``shuffle`` stands for it: each sample once, shuffled or in sequence.

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
        """Return the order of one epoch.

        Args:
            num_samples: The number of samples of the dataset.
            seed: The seed of the run.
            epoch: The number of the epoch, from 0.
        """

    def takes_each_once(self, num_samples: int) -> bool:
        """Whether it decides nothing but when samples come: each of them once an epoch, in batches of any size.

        Args:
            num_samples: The number of samples of the dataset.
        """
        if self.makes_batches:
            return False
        epoch = self.epoch_order(num_samples, seed=0, epoch=0)
        return epoch.num_samples == num_samples and not epoch.repeats

    def parameters(self) -> Mapping[str, object]:
        """Return what the order was made with and depends on, by name.

        By default, the public attributes of this object. Tensors, arrays, numbers, strings, functions, which stand for
        their names, and lists and dictionaries of them can be told from others.
        """
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    @property
    def fingerprint(self) -> str:
        """The name, and a digest of the parameters: two orders with the same identity give the same epochs.

        It is computed once. For a parameter of a gigabyte that takes about a second.

        Raises:
            TypeError: A parameter is an object that says nothing of what it holds.
        """
        return self._identity

    @cached_property
    def _identity(self) -> str:
        return fingerprint(self.name, self.parameters())
