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
    """Visit each sample once an epoch, in a random order that differs between epochs.

    It is the usual order for training, and the default of loaders with ``shuffle=True``.

    Attributes:
        algorithm: The name of the permutation algorithm, which ``EpochOrder.algorithm`` tells. The default, None,
            chooses by the number of samples. Pass a name to reproduce the order of an earlier run.

    Example:
        >>> order = Shuffled().epoch_order(3, seed=0, epoch=1)
        >>> sorted(order.indices(0, 3).tolist())
        [0, 1, 2]
    """

    name: ClassVar[str] = "shuffled-v1"
    equal_epochs: ClassVar[bool] = True
    is_plain: ClassVar[bool] = True
    algorithm: str | None = None

    @override
    def epoch_order(self, num_samples: int, *, seed: int, epoch: int) -> EpochOrder:
        return epoch_order(num_samples, seed=seed, epoch=epoch, algorithm=self.algorithm)

    @override
    def parameters(self) -> Mapping[str, object]:
        return {} if self.algorithm is None else {"algorithm": self.algorithm}


@dataclass(frozen=True)
class Sequential(Order):
    """Visit each sample once an epoch, in the order of the dataset.

    Use it for data whose order matters, and for datasets that are shuffled already.

    Example:
        >>> Sequential().epoch_order(3, seed=0, epoch=1).indices(0, 3).tolist()
        [0, 1, 2]
    """

    name: ClassVar[str] = "sequential-v1"
    equal_epochs: ClassVar[bool] = True
    is_plain: ClassVar[bool] = True
    ascends: ClassVar[bool] = True

    @override
    def epoch_order(self, num_samples: int, *, seed: int, epoch: int) -> EpochOrder:
        return epoch_order(num_samples, seed=seed, epoch=epoch, shuffle=False)
