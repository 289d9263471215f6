"""Several datasets as a single dataset, each with its share of every epoch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sized
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset
from typing_extensions import override

from pa_data.batches import describe_batch
from pa_data.errors import DataError, EmptyDatasetError
from pa_data.orders._checks import check_count, check_one_for_each_sample
from pa_data.orders._epoch_order import EpochOrder
from pa_data.orders._order import Order
from pa_data.orders._passes import EpochOfSources, SourcesOfSamples

if TYPE_CHECKING:
    from fractions import Fraction

__all__ = ["Mixture"]

_SampleT_co = TypeVar("_SampleT_co", covariant=True)


class Mixture(ConcatDataset[_SampleT_co]):
    """Combines several datasets into a single dataset, in which each has its share of every epoch.

    Use it to train on datasets of very different sizes, or with chosen proportions. As a dataset, it is the
    concatenation of the datasets, which is right for an evaluation. For training it has a ``default_order``, which a
    ``KeyedDataLoader`` with ``shuffle=True`` uses. In this order, each epoch has a fixed number of samples of each
    dataset, spread evenly over the epoch. Each dataset is visited in shuffled passes that continue from one epoch to
    the next, so all samples of a dataset are visited before any of them is repeated, even if its share is small.

    A sample that appears several times in an epoch gets different random augmentation each time. Batches contain
    samples of all datasets, so all samples must have the same structure.

    Args:
        datasets: The datasets by name, each with a length and integer indices.
        weights: The share of each dataset in an epoch, relative to the others, by the same names. By default, the
            shares are proportional to the lengths, so that each sample comes the same number of times. A weight of 0
            leaves out a dataset.
        num_samples: The number of samples of an epoch, over all datasets and processes. By default it is the sum of the
            lengths.

    Attributes:
        names: The names of the datasets, in their order.
        num_samples: The number of samples in an epoch of training, which uses the ``default_order``.
        default_order: The order for training, an ``Order``.
        datasets: The datasets, in their order.

    Raises:
        TypeError: The datasets are not passed by name, or a dataset has no length or no integer indices.
        DataError: The weights have other names, are negative or not finite, or are so small that a dataset would not
            appear; or datasets of tensors have samples of different shapes or types; or a dataset has a
            ``default_order`` that does not visit each sample once, for example another mixture.
        EmptyDatasetError: A dataset with a weight above 0 has no samples.

    Example:
        >>> from pa_data import KeyedDataLoader
        >>> from pa_data.orders import Mixture
        >>> mixture = Mixture({"ours": ["a"] * 10, "others": ["b"] * 90}, weights={"ours": 1, "others": 3})
        >>> loader = KeyedDataLoader(mixture, batch_size=100, shuffle=True)
        >>> next(iter(loader)).count("a")
        25
    """

    def __init__(
        self,
        datasets: Mapping[str, Dataset[_SampleT_co]],
        *,
        weights: Mapping[str, float] | None = None,
        num_samples: int | None = None,
    ) -> None:
        lengths = _lengths(datasets)
        check_count("num_samples", 1 if num_samples is None else num_samples)
        shares = _checked_weights(lengths, lengths if weights is None else weights)
        _check_orders(datasets)
        _check_structures(datasets)
        super().__init__(datasets.values())  # pyright: ignore[reportUnknownMemberType]  # open in torch
        self.names: tuple[str, ...] = tuple(datasets)
        self.num_samples: int = num_samples or sum(lengths.values())
        counts = _counts(shares, self.num_samples)
        self.default_order: Order = _MixtureOrder(
            SourcesOfSamples(torch.tensor([*lengths.values()]), torch.tensor([*counts.values()]), names=self.names)
        )

    def locate(self, index: int) -> tuple[str, int]:
        """Return the dataset of a sample, and its index there.

        You call it to find a bad sample, or to log losses by dataset.

        Args:
            index: The index of the sample in the mixture, from 0 to ``len(mixture) - 1``, as ``EpochOrder.indices``
                returns it.

        Returns:
            The name of the dataset, and the index of the sample in it, from 0.

        Raises:
            IndexError: There is no such sample, or the index is negative.

        Example:
            >>> from pa_data.orders import Mixture
            >>> Mixture({"ours": range(10), "others": range(90)}).locate(12)
            ('others', 2)
        """
        if not 0 <= index < len(self):
            raise IndexError(f"there is no sample {index} in {len(self)} samples of {len(self.names)} datasets")
        number = bisect_right(self.cumulative_sizes, index)
        return self.names[number], index - (self.cumulative_sizes[number - 1] if number > 0 else 0)


class _MixtureOrder(Order):
    name: ClassVar[str] = "mixture-v1"
    equal_epochs: ClassVar[bool] = True

    def __init__(self, sources: SourcesOfSamples) -> None:
        self._sources = sources

    @override
    def epoch_order(self, num_samples: int, *, seed: int, epoch: int) -> EpochOrder:
        check_one_for_each_sample("samples of a mixture", int(self._sources.sizes.sum()), num_samples)
        return _MixtureEpoch(self._sources, seed=seed, epoch=epoch)

    @override
    def parameters(self) -> Mapping[str, object]:
        return {"lengths": self._sources.sizes, "counts": self._sources.counts}


class _MixtureEpoch(EpochOfSources):
    algorithm = _MixtureOrder.name


def _by_name(given: object) -> Mapping[object, object]:
    """Return a mapping, or an empty dictionary for any other value."""
    return cast("Mapping[object, object]", given) if isinstance(given, Mapping) else {}


def _lengths(datasets: object) -> dict[str, int]:
    """Return the lengths of datasets by name."""
    named = _by_name(datasets)
    if not named or not all(isinstance(name, str) and name for name in named):
        raise TypeError(
            f"A mixture needs its datasets by name. Got a {type(datasets).__name__} with the names {list(named)}. "
            'Pass for example {"ours": ours, "others": others}; the history has their shares by these names.'
        )
    return {str(name): _length(str(name), dataset) for name, dataset in named.items()}


def _length(name: str, dataset: object) -> int:
    """Return the length of a dataset."""
    kind = type(dataset)
    with suppress(TypeError, NotImplementedError):
        if hasattr(kind, "__getitem__") and not issubclass(kind, IterableDataset):
            return len(cast("Sized", dataset))
    raise TypeError(
        f"A mixture takes datasets with a length, whose samples are indexed by integers, and {name!r} is a "
        f"{kind.__name__}. Give the dataset __len__ and __getitem__."
    )


def _check_orders(datasets: Mapping[str, Dataset[Any]]) -> None:
    """Raise an error for a dataset whose default order would have no effect in a mixture."""
    for name, dataset in datasets.items():
        order: object = getattr(dataset, "default_order", None)
        if isinstance(order, Order) and not order.takes_each_once(_length(name, dataset)):
            raise DataError(
                f"The order that a dataset brings has no effect in a mixture: {name!r} is a "
                f"{type(dataset).__name__}, which brings the order {order.name}. Pass a dataset without "
                "default_order; in place of a mixture, its datasets with their weights."
            )


def _check_structures(datasets: Mapping[str, Dataset[Any]]) -> None:
    """Raise an error for tensors in memory that cannot form a batch; other datasets must be read to know it."""
    seen: dict[str, str] = {}
    for name, dataset in datasets.items():
        inner: Dataset[Any] = dataset
        while type(inner) is Subset:
            inner = inner.dataset  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # open in torch
        if type(inner) is TensorDataset:
            sample = tuple(tensor.new_empty(tensor.shape[1:], device="meta") for tensor in inner.tensors)
            seen.setdefault(describe_batch(sample), name)
    if len(seen) > 1:
        (structure, name), (other, other_name), *_ = seen.items()
        raise DataError(
            f"The datasets of a mixture have samples that make no batch: a sample of {name!r} is {structure}, a sample "
            f"of {other_name!r} is {other}. Give the samples the same structure, with the conversions that the model "
            "needs."
        )


def _checked_weights(lengths: Mapping[str, int], weights: object) -> dict[str, Fraction]:
    """Return the weight of each dataset, in the order of the datasets."""
    named = _by_name(weights)
    if set(named) != set(lengths):
        raise DataError(
            f"Each dataset of a mixture needs a weight, by the names {', '.join(lengths)}. Got weights={weights!r}. "
            "Pass a weight for each dataset, by its name; 0 leaves one out."
        )
    from fractions import Fraction  # the import takes 2 ms; few scripts mix datasets

    checked: dict[str, Fraction] = {}
    for name in lengths:
        weight = named[name]
        if not isinstance(weight, int | float | Fraction) or not 0 <= weight < inf:
            raise DataError(f"weights[{name!r}] must be a finite number >= 0, got {weight!r}.")
        checked[name] = Fraction(weight)
    if not any(checked.values()):
        raise DataError(f"No sample of a mixture would ever come: weights={weights!r}, none of them above 0.")
    for name in lengths:
        if checked[name] > 0 and lengths[name] == 0:
            problem = f"A dataset of the mixture is empty: {name!r} with 0 samples."
            raise EmptyDatasetError(f"{problem} Give it a weight of 0, or look at how it was made.")
    return checked


def _counts(weights: Mapping[str, Fraction], num_samples: int) -> dict[str, int]:
    """Return the number of samples of each dataset, rounded so that they add up."""
    total = sum(weights.values())
    exact = {name: num_samples * weight / total for name, weight in weights.items()}
    counts = {name: int(number) for name, number in exact.items()}
    missing = num_samples - sum(counts.values())
    for name in sorted(exact, key=lambda name: counts[name] - exact[name])[:missing]:
        counts[name] += 1
    for name, count in counts.items():
        if count == 0 and weights[name] > 0:
            share = f"{float(exact[name]):.2g} of the {num_samples} samples of an epoch"
            raise DataError(
                f"A dataset would never come: weights[{name!r}]={float(weights[name])}, which is {share}. Make "
                "epochs longer with num_samples=..., or give it more weight."
            )
    return counts
