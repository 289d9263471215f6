"""The order that draws each sample in proportion to a weight."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, cast

import torch
from torch import Tensor
from typing_extensions import override

from pa_data.errors import DataError
from pa_data.orders._checks import and_more, check_count, check_one_for_each_sample, column
from pa_data.orders._epoch_order import ChunkedEpoch, EpochOrder
from pa_data.orders._keyed_numbers import uniform
from pa_data.orders._order import Order
from pa_data.rng import extend_key

__all__ = ["Weighted"]

_DRAWS = -3  # extends the key of an epoch for the draw at a position
_CHUNK = 65_536  # fits into a processor's cache
_TOTAL_BITS = 53  # integers up to this many bits are exact in float64


class Weighted(Order):
    """Draws samples with probabilities in proportion to their weights, as torch's ``WeightedRandomSampler`` does.

    Use it to show important samples more often, as ``order`` of a ``KeyedDataLoader``. To give all classes the same
    share, use ``ClassBalanced``, which has less variance.

    With replacement, the sample at a position depends only on the seed, the epoch and the position. No table is needed
    for an epoch, because the weights are summed up once, and a position is found by binary search. A sample that is
    drawn twice in an epoch gets different random augmentation each time.

    Without replacement, each sample comes at most once, as if samples were drawn one after the other from the remaining
    samples, so samples with large weights tend to come early. This needs a table of the whole dataset at the start of
    each epoch and when a run resumes, which takes 2 seconds for 10 million samples.

    Args:
        weights: A number of at least 0 for each sample, in the order of the dataset. The sum does not matter.
        replacement: Whether a sample may be drawn more than once in an epoch. The default is True, as in torch.
        num_samples: The number of samples of an epoch. By default it is the number of weights or, without replacement,
            of weights above 0.

    Attributes:
        replacement: Whether a sample may be drawn more than once in an epoch.
        num_samples: The number of samples of an epoch.

    Raises:
        DataError: A weight is negative or not finite, all weights are 0, or ``num_samples`` is too large for drawing
            without replacement.
        TypeError: The weights are not numbers in one dimension.

    Example:
        >>> from pa_data import KeyedDataLoader
        >>> from pa_data.orders import Weighted
        >>> order = Weighted([0.0, 1.0, 3.0], num_samples=4000)
        >>> batch = next(iter(KeyedDataLoader(range(3), batch_size=4000, order=order)))
        >>> batch.bincount(minlength=3) / 4000
        tensor([0.0000, 0.2558, 0.7442])
    """

    name: ClassVar[str] = "weighted-v1"
    equal_epochs: ClassVar[bool] = True

    def __init__(
        self, weights: Tensor | Sequence[float], *, replacement: bool = True, num_samples: int | None = None
    ) -> None:
        checked = _checked(column("weights", weights, torch.float64))
        check_count("num_samples", 1 if num_samples is None else num_samples)
        self._sums = _integers(checked).cumsum(0)
        self._num_weights = checked.numel()
        self._weights = None if replacement else checked
        num_available = self._num_weights if replacement else int(checked.count_nonzero())
        self.replacement: bool = replacement
        self.num_samples: int = num_samples or num_available
        if not replacement and self.num_samples > num_available:
            given = f"num_samples={num_samples}, replacement=False, and {num_available} weights above 0"
            raise DataError(f"No sample may come twice: {given}. Take fewer, or pass replacement=True.")

    @override
    def epoch_order(self, num_samples: int, *, seed: int, epoch: int) -> EpochOrder:
        """Return the order of an epoch, whose samples are drawn by their weights.

        A loader calls it when an epoch is chosen, with the length of its dataset; you call it to look at the order.
        Nothing is drawn before ``EpochOrder.indices`` is called.

        Args:
            num_samples: The number of samples of the dataset, which must be the number of weights. It is not the number
                of samples of the epoch.
            seed: The seed of the run.
            epoch: The epoch number, from 0. Each epoch has different draws.

        Returns:
            The order of the epoch, of ``self.num_samples`` positions.

        Raises:
            DataError: The dataset does not have one sample per weight.

        Example:
            >>> from pa_data.orders import Weighted
            >>> Weighted([0.0, 1.0], num_samples=3).epoch_order(2, seed=0, epoch=0).indices(0, 3)
            tensor([1, 1, 1])
        """
        check_one_for_each_sample("weights", self._num_weights, num_samples)
        if self._weights is None:
            return _WithReplacement(self._sums, self.num_samples, seed=seed, epoch=epoch)
        return _WithoutReplacement(self._weights, self.num_samples, seed=seed, epoch=epoch)

    @override
    def parameters(self) -> Mapping[str, object]:
        """Return the weights and the other arguments, which identify this order in saved states.

        You need not call it; ``fingerprint`` calls it, so that a run cannot resume with different weights by mistake.

        Returns:
            The weights under ``"weights"``, as a tensor (with replacement, their running sums as integers),
            ``"replacement"`` and ``"num_samples"``.

        Example:
            >>> from pa_data.orders import Weighted
            >>> Weighted([1.0, 2.0]).parameters()["num_samples"]
            2
        """
        weights = self._sums if self._weights is None else self._weights
        return {"weights": weights, "replacement": self.replacement, "num_samples": self.num_samples}


class _WithReplacement(EpochOrder):
    algorithm = Weighted.name
    repeats = True

    def __init__(self, sums: Tensor, num_samples: int, *, seed: int, epoch: int) -> None:
        super().__init__(num_samples, seed=seed, epoch=epoch)
        self._sums = sums

    @override
    def compute_indices(self, start: int, stop: int) -> Tensor:
        total = int(self._sums[-1])
        drawn = uniform(extend_key(self._key, _DRAWS), start, stop) * total
        return torch.searchsorted(self._sums, drawn.to(torch.int64).clamp_(max=total - 1), right=True)


class _WithoutReplacement(ChunkedEpoch):
    """Draws an exponential waiting time for each sample, with its weight as the rate, and sorts the samples by it.

    See Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006.
    """

    algorithm = Weighted.name

    def __init__(self, weights: Tensor, num_samples: int, *, seed: int, epoch: int) -> None:
        super().__init__(num_samples, seed=seed, epoch=epoch)
        self._weights = weights

    @override
    def chunk_at(self, position: int) -> tuple[int, Tensor]:
        key, number = extend_key(self._key, _DRAWS), self._weights.numel()
        waits = torch.cat(
            [_waits(key, self._weights, first, min(first + _CHUNK, number)) for first in range(0, number, _CHUNK)]
        )
        return 0, waits.argsort(stable=True)[: self.num_samples].clone()


def _waits(key: int, weights: Tensor, start: int, stop: int) -> Tensor:
    """Return the waiting times of some samples, drawn by their index; infinite for a weight of 0."""
    chosen = weights[start:stop]
    waits = -_logarithm(1.0 - uniform(key, start, stop)) / chosen
    return torch.where(chosen > 0, waits, torch.inf)


def _checked(weights: Tensor) -> Tensor:
    """Return the weights if all of them are valid."""
    if weights.numel() > 0 and not 0 <= float(weights.min()) <= float(weights.max()) < math.inf:
        wrong = (~(weights.isfinite() & (weights >= 0))).nonzero().squeeze(1)
        raise DataError(
            "Not every weight is a number of at least 0. Got "
            f"weights[{int(wrong[0])}]={float(weights[wrong[0]])}{and_more(wrong.numel() - 1)}. Look at how the "
            "weight of this sample was computed; 1 / 0 for a class without samples is common."
        )
    if weights.numel() == 0 or float(weights.max()) == 0:
        raise DataError(f"No sample would ever be drawn: {weights.numel()} weights, none of them above 0.")
    return weights


def _integers(weights: Tensor) -> Tensor:
    """Scale weights to integers whose sum has at most 53 bits, so that sums are exact on every machine.

    A relative weight below ``2**-53`` becomes 0.
    """
    exponent = int(torch.frexp(weights.max()).exponent)
    places = 62 - weights.numel().bit_length()
    coarse = int(_scaled(weights, places - exponent).sum()) + weights.numel()
    return _scaled(weights, places - exponent + _TOTAL_BITS - coarse.bit_length())


def _scaled(weights: Tensor, exponent: int) -> Tensor:
    """Multiply by a power of two, in two steps since it may be out of range, and round down."""
    half = exponent // 2
    return (weights * 2.0**half).mul_(2.0 ** (exponent - half)).to(torch.int64)


def _logarithm(values: Tensor) -> Tensor:
    """Return the natural logarithm of positive numbers, bit-for-bit identical on every processor."""
    mantissa, exponent = cast("tuple[Tensor, Tensor]", torch.frexp(values))
    small = mantissa < 0.5**0.5
    mantissa = torch.where(small, mantissa * 2, mantissa)
    ratio = (mantissa - 1) / (mantissa + 1)
    square = ratio * ratio
    series = torch.full_like(values, 1 / 23)
    for odd in range(21, 0, -2):
        series = series * square + 1 / odd
    power_of_two = (exponent - small.to(exponent.dtype)).to(torch.float64)
    logarithm: Tensor = power_of_two * 0.6931471805599453 + ratio * series * 2
    return logarithm
