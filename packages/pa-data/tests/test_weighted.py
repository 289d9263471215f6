"""Weighted: samples are drawn as often as their weights say, as a function of seed, epoch and position."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pa_data import KeyedDataLoader
from pa_data.errors import ArgumentTypeError, ConfigurationError
from pa_data.orders import Weighted
from tests.support.drawing import Drawing


def epoch_of(order: Weighted, num_weights: int, *, seed: int = 0, epoch: int = 0) -> Tensor:
    """A whole epoch."""
    whole = order.epoch_order(num_weights, seed=seed, epoch=epoch)
    return whole.indices(0, whole.num_samples)


def chi_squared(counts: Tensor, probabilities: Tensor) -> float:
    """How far the counts are from those expected, in standard deviations of the statistic."""
    expected = counts.sum() * probabilities
    statistic = float(((counts - expected) ** 2 / expected).sum())
    degrees = counts.numel() - 1
    return (statistic - degrees) / math.sqrt(2 * degrees)


def test_samples_come_in_proportion_to_their_weights() -> None:
    """A chi-squared test over 200,000 draws finds the probabilities that were asked for, and none of weight 0."""
    weights = torch.arange(101, dtype=torch.float64)
    counts = epoch_of(Weighted(weights, num_samples=200_000), 101).bincount(minlength=101)
    assert counts[0] == 0
    assert abs(chi_squared(counts[1:], weights[1:] / weights.sum())) < 4


def test_neighbouring_positions_and_epochs_are_independent() -> None:
    """Draws that follow each other, in an epoch or from one to the next, have nothing to do with each other."""
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
    order = Weighted(weights, num_samples=100_000)
    first, second = epoch_of(order, 4), epoch_of(order, 4, epoch=1)
    pairs = (weights[:, None] * weights / 100).flatten()
    for one, other in [(first[:-1], first[1:]), (first, second), (first, epoch_of(order, 4, seed=1))]:
        assert abs(chi_squared((one * 4 + other).bincount(minlength=16), pairs)) < 4


def test_without_replacement_each_comes_once_and_the_heavy_ones_early() -> None:
    """The first sample of an epoch is drawn by weight, the others from those that are left."""
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 0.0])
    order = Weighted(weights, replacement=False)
    first = torch.zeros(4)
    second_after_the_last = torch.zeros(3)
    for epoch in range(1000):
        drawn = epoch_of(order, 5, epoch=epoch)
        assert sorted(drawn.tolist()) == [0, 1, 2, 3]
        first[drawn[0]] += 1
        if drawn[0] == 3:
            second_after_the_last[drawn[1]] += 1
    assert abs(chi_squared(first, weights[:4] / 10)) < 4
    assert abs(chi_squared(second_after_the_last, weights[:3] / 6)) < 4


def test_scale_and_type_of_the_weights_do_not_matter() -> None:
    """Weights of any size are drawn by alike, in any type that torch knows."""
    expected = epoch_of(Weighted([0, 1, 3, 4], num_samples=50), 4)
    for weights in (
        torch.tensor([0, 1, 3, 4]),
        torch.tensor([0.0, 0.25, 0.75, 1.0], dtype=torch.bfloat16),
        [0.0, 1e300 / 4, 1e300 / 4 * 3, 1e300],
        [0.0, 2.0**-1074, 3 * 2.0**-1074, 4 * 2.0**-1074],
    ):
        assert torch.equal(epoch_of(Weighted(weights, num_samples=50), 4), expected)


def test_its_identity_tells_weights_and_options_apart() -> None:
    """A run resumes with the same weights and options, and with no others."""
    orders = [
        Weighted([1, 2, 3]),
        Weighted([1, 2, 3.5]),
        Weighted([1, 2, 3], replacement=False),
        Weighted([1, 2, 3], num_samples=2),
    ]
    assert len({order.fingerprint for order in orders}) == 4
    assert Weighted(torch.tensor([1, 2, 3])).fingerprint == orders[0].fingerprint


@pytest.mark.parametrize(
    ("weights", "named"),
    [
        ([1.0, -2.0, -1.0], r"weights\[1\]=-2\.0, and 1 more"),
        ([1.0, math.nan], r"weights\[1\]=nan\n"),
        ([math.inf, 1.0], r"weights\[0\]=inf"),
        ([0.0, 0.0], "none of them above 0"),
        ([], "0 weights"),
    ],
)
@pytest.mark.parametrize("replacement", [True, False])
def test_weights_that_mean_nothing_are_refused(weights: list[float], named: str, replacement: bool) -> None:
    """Weights that are negative, not finite, or all 0 are refused by the sample that has them."""
    with pytest.raises(ConfigurationError, match=named):
        Weighted(weights, replacement=replacement)


def test_weights_of_another_shape_are_refused() -> None:
    """A table of weights, and what is no number, is refused when the order is made."""
    with pytest.raises(ArgumentTypeError, match=r"shape \(2, 3\)"):
        Weighted(torch.ones(2, 3))
    with pytest.raises(ArgumentTypeError, match="weights of type str"):
        Weighted("heavy")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # the mistake


def test_weights_of_another_dataset_are_refused() -> None:
    """A loader says how many weights and how many samples there are."""
    with pytest.raises(ConfigurationError, match="3 weights and a dataset of 5 samples"):
        KeyedDataLoader(Drawing(5), order=Weighted([1, 2, 3]))


def test_more_samples_than_there_are_without_replacement_are_refused() -> None:
    """Samples of weight 0 do not count, neither there nor in the default."""
    assert Weighted([1, 0, 2], replacement=False).num_samples == 2
    with pytest.raises(ConfigurationError, match=r"(?s)num_samples=3.*2 weights above 0"):
        Weighted([1, 0, 2], replacement=False, num_samples=3)


@pytest.mark.parametrize("num_samples", [0, -1, 2.5, True])
def test_an_epoch_without_samples_is_refused(num_samples: Any) -> None:
    """The size of an epoch is an integer of at least 1."""
    with pytest.raises(ConfigurationError, match="num_samples must be a whole number >= 1"):
        Weighted([1, 2], num_samples=num_samples)
