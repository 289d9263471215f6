"""Orders that draw by weights, group by length, choose by epoch, or shuffle."""

from __future__ import annotations

import math
from functools import partial

import numpy
import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from pa_data import KeyedDataLoader
from pa_data.orders import Curriculum, LengthGrouped, Order, Sequential, Shuffled, Weighted
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


def test_there_may_be_more_weights_than_torch_draws_from() -> None:
    """Torch's `multinomial`, and so its sampler, ends at 2**24."""
    weights = torch.zeros(2**24 + 1, dtype=torch.float32)
    weights[-1] = 1
    order = Weighted(weights, num_samples=3).epoch_order(len(weights), seed=0, epoch=0)
    assert order.indices(0, 3).tolist() == [2**24] * 3


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


def test_samples_of_weight_0_do_not_count_without_replacement() -> None:
    """By default an epoch has the others."""
    assert Weighted([1, 0, 2], replacement=False).num_samples == 2


DIFFICULTY = torch.arange(10.0).flip(0)


def easiest(epoch: int) -> Tensor:
    """Three samples in the first epoch, and two more in each that follows."""
    return DIFFICULTY.lt(3 + 2 * epoch)


def visited(order: Curriculum, epoch: int, num_samples: int = 10, seed: int = 0) -> list[int]:
    """The samples of an epoch."""
    whole = order.epoch_order(num_samples, seed=seed, epoch=epoch)
    return [int(index) for index in whole.indices(0, whole.num_samples)]


def test_each_epoch_visits_what_is_chosen_for_it() -> None:
    """A mask or indices say which samples an epoch visits; they are shuffled unless that is switched off."""
    by_mask = Curriculum(easiest)
    by_index = Curriculum(lambda epoch: [9, 8, 7, 6, 5, 4, 3, 2, 1, 0][: 3 + 2 * epoch], shuffle=False)
    for epoch in range(3):
        assert sorted(visited(by_mask, epoch)) == list(range(7 - 2 * epoch, 10))
        assert visited(by_index, epoch) == list(range(9, 6 - 2 * epoch, -1))
    assert visited(by_mask, 2) != visited(by_mask, 2, seed=1)
    assert visited(Curriculum(lambda epoch: torch.ones(10, dtype=torch.bool)), 3) == visited(
        Curriculum(lambda epoch: range(10)), 3
    )


def test_a_loader_has_as_many_batches_as_the_epoch_has_samples_for() -> None:
    """Epochs differ in length, and begin at any of their positions."""
    loader = KeyedDataLoader(Drawing(10), batch_size=2, order=Curriculum(easiest), num_workers=1)
    for epoch, length in enumerate([2, 3, 4]):
        loader.start_epoch(epoch)
        assert len(loader) == length
        whole = torch.cat(list(loader))
        assert sorted(whole[:, 0].tolist()) == list(range(7 - 2 * epoch, 10))
        loader.start_epoch(epoch, 2)
        assert torch.equal(torch.cat(list(loader)), whole[2:])


def test_a_random_choice_follows_from_seed_and_epoch() -> None:
    """What the function draws is the same on each call, and the generators of the process are as they were."""
    order = Curriculum(
        lambda epoch: numpy.random.permutation(10)[:5].tolist() + torch.randperm(10)[:1].tolist(), shuffle=False
    )
    before = torch.get_rng_state(), repr(numpy.random.get_state())
    first = visited(order, 0)
    assert visited(order, 0) == first
    assert len({tuple(visited(order, epoch, seed=seed)) for epoch in range(3) for seed in range(3)}) == 9
    assert torch.equal(torch.get_rng_state(), before[0])
    assert repr(numpy.random.get_state()) == before[1]


class Limit:
    """A function with a setting."""

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def __call__(self, epoch: int) -> Tensor:
        """Choose as `limit_to`."""
        return limit_to(self.limit, epoch)


def limit_to(limit: float, epoch: int) -> Tensor:
    """All samples in the first epoch, then those below a limit."""
    return DIFFICULTY.lt(limit if epoch else 100)


def test_its_identity_is_the_name_of_the_function_and_its_first_choice() -> None:
    """A run is not resumed with another function, with other settings of an object or a partial, or with other data."""
    orders = [
        Curriculum(easiest),
        Curriculum(easiest, shuffle=False),
        Curriculum(lambda epoch: range(3 + 2 * epoch)),
        Curriculum(lambda epoch: range(4 + 2 * epoch)),
        Curriculum(Limit(3)),
        Curriculum(Limit(4)),
        Curriculum(partial(limit_to, 3)),
        Curriculum(partial(limit_to, 4)),
    ]
    assert len({order.fingerprint for order in orders}) == 8
    assert Curriculum(easiest).fingerprint == orders[0].fingerprint
    assert Curriculum(Limit(3)).fingerprint == orders[4].fingerprint


NUMBER = 3300
LENGTHS = torch.randint(1, 500, (NUMBER,), generator=torch.Generator().manual_seed(0))


def indices(order: LengthGrouped | Shuffled, *, seed: int = 3, epoch: int = 0) -> Tensor:
    """The samples of an epoch."""
    return order.epoch_order(NUMBER, seed=seed, epoch=epoch).indices(0, NUMBER)


def padding(samples: Tensor, batch_size: int) -> float:
    """Which part of the padded batches of an epoch is padding."""
    batches = [LENGTHS[batch] for batch in torch.split(samples, batch_size)]
    return 1 - int(LENGTHS.sum()) / sum(len(batch) * int(batch.max()) for batch in batches)


def test_each_sample_comes_once() -> None:
    """Each epoch and each seed has every sample once, in another order."""
    order = LengthGrouped(LENGTHS, group_size=32, window=640)
    epochs = [indices(order), indices(order, epoch=1), indices(order, seed=4)]
    assert all(sorted(one.tolist()) == list(range(NUMBER)) for one in epochs)
    assert len({tuple(one.tolist()) for one in epochs}) == 3


def test_little_of_a_batch_is_padding() -> None:
    """Batches of a group, or of a part of it, are padded far less than those of a shuffled epoch."""
    order = LengthGrouped(LENGTHS, group_size=32)
    assert padding(indices(Shuffled()), 32) > 0.4
    assert padding(indices(order), 32) < 0.05
    assert padding(indices(order), 8) < 0.05


def test_groups_come_in_a_random_order() -> None:
    """Neither in a window nor in the epoch do long samples come before or after short ones."""
    order = LengthGrouped(LENGTHS, group_size=32, window=640)
    means = LENGTHS[indices(order)[:3200]].double().view(100, 32).mean(1)
    later = torch.arange(100, dtype=torch.float64)
    assert abs(torch.corrcoef(torch.stack([means, later]))[0, 1]) < 0.2
    within = later.remainder(20)
    assert abs(torch.corrcoef(torch.stack([means, within]))[0, 1]) < 0.2


def test_groups_begin_where_batches_do() -> None:
    """The group that is not full comes at the end of the epoch."""
    samples = indices(LengthGrouped(LENGTHS, group_size=32, window=640))
    lengths = LENGTHS[samples]
    assert all(torch.equal(group, group.sort().values) for group in torch.split(lengths, 32))
    assert NUMBER % 32 == len(torch.split(lengths, 32)[-1]) == 4


def ids(order: Order | None, *, shuffle: bool = False) -> list[int]:
    """What a loader of ten samples yields in its epoch 2."""
    data = TensorDataset(torch.arange(10))
    loader: KeyedDataLoader[tuple[Tensor, ...]] = KeyedDataLoader(data, 4, shuffle, order=order, seed=5)
    loader.start_epoch(2)
    return [int(index) for (batch,) in loader for index in batch]


@pytest.mark.parametrize(("order", "shuffle"), [(Shuffled(), True), (Sequential(), False)])
def test_they_are_what_a_loader_does_by_default(order: Order, shuffle: bool) -> None:
    """An order that is given by name is the one that ``shuffle`` asks for."""
    assert ids(order) == ids(None, shuffle=shuffle)
    assert sorted(ids(order)) == list(range(10))
