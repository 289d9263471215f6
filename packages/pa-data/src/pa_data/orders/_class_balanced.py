"""The order with the same number of samples of each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from pa_data.errors import DataError, EmptyDatasetError
from pa_data.orders._checks import check_count, check_one_for_each_sample, column
from pa_data.orders._epoch_order import EpochOrder
from pa_data.orders._order import Order
from pa_data.orders._passes import EpochOfSources, SourcesOfSamples

__all__ = ["ClassBalanced"]

_NUMBER_NAMES = (
    "Pass one integer for each sample. Number the classes: numbers = {name: number for number, name in "
    "enumerate(sorted(set(labels)))}, and pass [numbers[name] for name in labels], if they have names."
)


class ClassBalanced(Order):
    """Visits the same number of samples of each class in every epoch, spread evenly over the epoch.

    Use it for a classification dataset with rare classes, as ``order`` of a ``KeyedDataLoader``. The number of samples
    of each class is fixed, not drawn, so it is the same in every epoch, and nearly the same in any few thousand
    consecutive positions. Each class is visited in shuffled passes that continue from one epoch to the next, so all
    samples of a class are visited before any of them is repeated. Drawing with weights, as ``Weighted`` does, leaves
    out a third of a rare class in each pass and repeats other samples.

    A sample that appears several times in an epoch gets different random augmentation each time. The order needs no
    table for an epoch, because any position is computed in some milliseconds.

    Args:
        labels: The class of each sample, in the order of the dataset, as integers in one dimension. They need not be
            consecutive.
        num_samples: The number of samples of an epoch. By default it is the largest multiple of the number of classes
            that is at most the number of labels, so that all classes have the same number. If it is not a multiple,
            each of the first classes has one more sample.

    Attributes:
        num_samples: The number of samples of an epoch.

    Raises:
        DataError: The labels are not integers, or an epoch has fewer samples than there are classes.
        TypeError: The labels are not numbers in one dimension.
        EmptyDatasetError: There are no labels.

    Example:
        >>> import torch
        >>> from pa_data import KeyedDataLoader
        >>> from pa_data.orders import ClassBalanced
        >>> labels = torch.tensor([0, 0, 0, 0, 0, 1])
        >>> loader = KeyedDataLoader(labels, batch_size=6, order=ClassBalanced(labels))
        >>> next(iter(loader)).bincount()
        tensor([3, 3])
    """

    name: ClassVar[str] = "class-balanced-v1"
    equal_epochs: ClassVar[bool] = True

    def __init__(self, labels: Tensor | Sequence[int], *, num_samples: int | None = None) -> None:
        given = column("labels", labels, do=_NUMBER_NAMES)
        if given.numel() == 0:
            raise EmptyDatasetError("labels must have the class of each sample of the dataset, got 0 labels.")
        if given.is_floating_point() or given.is_complex():
            raise DataError(
                f"Classes are told apart by integers, got labels of type {given.dtype}. Pass labels=labels.long(), "
                "if they are whole numbers; bin them first, if they are not."
            )
        check_count("num_samples", 1 if num_samples is None else num_samples)
        self._labels = given.to(torch.int64)
        by_class, samples = self._labels.sort(stable=True)
        begins = (by_class.diff() != 0).nonzero().squeeze(1) + 1
        sizes = begins.diff(prepend=torch.tensor([0]), append=torch.tensor([given.numel()]))
        self.num_samples: int = num_samples or max(1, given.numel() // sizes.numel()) * sizes.numel()
        self._sources = SourcesOfSamples(sizes, _equal_counts(self.num_samples, sizes.numel()), samples)

    @override
    def epoch_order(self, num_samples: int, *, seed: int, epoch: int) -> EpochOrder:
        """Return the order of an epoch with the same number of samples of each class.

        A loader calls it when an epoch is chosen, with the length of its dataset; you call it to look at the order.
        Nothing is computed before ``EpochOrder.indices`` is called.

        Args:
            num_samples: The number of samples of the dataset, which must be the number of labels. It is not the number
                of samples of the epoch.
            seed: The seed of the run.
            epoch: The epoch number, from 0. The passes through the classes continue from the previous epoch.

        Returns:
            The order of the epoch, of ``self.num_samples`` positions.

        Raises:
            DataError: The dataset does not have one sample per label.

        Example:
            >>> from pa_data.orders import ClassBalanced
            >>> epoch = ClassBalanced([0, 0, 0, 1]).epoch_order(4, seed=0, epoch=0)
            >>> epoch.indices(0, 4).eq(3).sum()
            tensor(2)
        """
        check_one_for_each_sample("labels", self._labels.numel(), num_samples)
        return _ClassBalancedEpoch(self._sources, seed=seed, epoch=epoch)

    @override
    def parameters(self) -> Mapping[str, object]:
        """Return the labels and the number of samples, which identify this order in saved states.

        You need not call it; ``fingerprint`` calls it, so that a run cannot resume with different labels by mistake.

        Returns:
            The labels under ``"labels"``, as an int64 tensor on the CPU, and ``"num_samples"``.

        Example:
            >>> from pa_data.orders import ClassBalanced
            >>> ClassBalanced([0, 0, 1]).parameters()
            {'labels': tensor([0, 0, 1]), 'num_samples': 2}
        """
        return {"labels": self._labels, "num_samples": self.num_samples}


class _ClassBalancedEpoch(EpochOfSources):
    algorithm = ClassBalanced.name


def _equal_counts(num_samples: int, num_classes: int) -> Tensor:
    """Return how many samples of each class an epoch has."""
    if num_samples < num_classes:
        raise DataError(
            f"Some classes would never come: num_samples={num_samples} and {num_classes} classes. Make epochs "
            "longer, or leave num_samples out."
        )
    whole, more = divmod(num_samples, num_classes)
    return torch.full((num_classes,), whole) + (torch.arange(num_classes) < more)
