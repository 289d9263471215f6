"""The order with equally many samples of each class."""

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
    """Visit equally many samples of each class in every epoch, spread evenly over the epoch.

    Use it for a classification dataset with rare classes. The number of samples of each class is fixed, not drawn, so
    it is the same in every epoch, and nearly the same in any few thousand consecutive positions. Each class is visited
    in shuffled passes that continue from one epoch to the next, so all samples of a class are visited before any of
    them returns. Drawing with weights, as ``Weighted`` does, leaves out a third of a rare class in each pass and
    repeats other samples.

    A sample that appears several times in an epoch gets different random augmentation each time. The order needs no
    table for an epoch: any position is computed in some milliseconds.

    Args:
        labels: The class of each sample, in the order of the dataset, as integers. They need not be consecutive.
        num_samples: The number of samples of an epoch. By default it is the largest multiple of the number of classes
            that is at most the number of labels, so that all classes have the same number. If it is not a multiple, the
            first classes have one sample more.

    Attributes:
        num_samples: The number of samples of an epoch.

    Raises:
        DataError: The labels are not integers, or an epoch has fewer samples than there are classes.
        TypeError: The labels are not numbers in one dimension.
        EmptyDatasetError: There are no labels.

    Example:
        >>> labels = torch.tensor([0, 0, 0, 0, 0, 1])
        >>> order = ClassBalanced(labels).epoch_order(6, seed=0, epoch=0)
        >>> labels[order.indices(0, 6)].bincount()
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
        check_one_for_each_sample("labels", self._labels.numel(), num_samples)
        return _ClassBalancedEpoch(self._sources, seed=seed, epoch=epoch)

    @override
    def parameters(self) -> Mapping[str, object]:
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
