"""What every order promises: epochs that follow from seed and epoch alone, wherever they begin."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch

from pa_data import KeyedDataLoader
from pa_data.orders import (
    ClassBalanced,
    Curriculum,
    LengthGrouped,
    Mixture,
    Order,
    Sequential,
    Shuffled,
    TokenBudget,
    Weighted,
)
from tests.support.drawing import Drawing, Indices

NUMBER = 20_000
"""Orders compute some thousand positions at once: an epoch has several such parts."""

LENGTHS = torch.randint(1, 500, (NUMBER,), generator=torch.Generator().manual_seed(0))
WEIGHTS = [(index * 37 % 101) / 7 for index in range(NUMBER)]


SHARES = {"a": 0.5, "b": 0.3, "c": 0.2}


def mixture(number: int, weights: dict[str, float] | None = SHARES, num_samples: int | None = 9000) -> Order:
    """The order of three datasets, the shares of which are other ones."""
    datasets = {"a": Indices(number // 10), "b": Indices(number // 10 * 3), "c": Indices(number // 10 * 6)}
    return Mixture(datasets, weights=weights, num_samples=num_samples).default_order


REPEATING: dict[str, Order] = {
    "weighted": Weighted(WEIGHTS, num_samples=9000),
    "mixture": mixture(NUMBER),
    "class balanced": ClassBalanced((torch.arange(NUMBER) % 70).clamp(max=2), num_samples=9000),
    "curriculum": Curriculum(lambda epoch: torch.arange(9000) % 4000),
}
ORDERS: dict[str, Order] = {
    **REPEATING,
    "shuffled by randperm": Shuffled("randperm-v1"),
    "shuffled by feistel": Shuffled("feistel-v1"),
    "without replacement": Weighted(WEIGHTS, num_samples=9000, replacement=False),
    "length grouped": LengthGrouped(LENGTHS, group_size=32, window=640),
    "token budget": TokenBudget(LENGTHS, max_tokens=512),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_any_part_is_a_part_of_the_whole(order: Order) -> None:
    """Any part of an epoch, requested by itself, is that part of the whole; no global generator is drawn from."""
    before = torch.get_rng_state()
    epoch = order.epoch_order(NUMBER, seed=1, epoch=2)
    end = epoch.num_samples
    whole, again = epoch.indices(0, end), order.epoch_order(NUMBER, seed=1, epoch=2)
    for start, stop in [(0, end), (5, 5), (end - 1, end), (end, end), (630, 650), (8190, 8195), (3, end - 10), (0, 3)]:
        part = again.indices(start, stop)
        assert part.dtype == torch.int64
        assert torch.equal(part, whole[start:stop])
        assert torch.equal(part.zero_() + again.indices(start, stop), whole[start:stop])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("order", REPEATING.values(), ids=REPEATING)
def test_a_sample_that_comes_again_draws_differently(order: Order) -> None:
    """Each time that a sample comes in an epoch, its augmentation is another one; equal with and without workers."""
    options: dict[str, Any] = {"batch_size": 500, "order": order, "seed": 3}
    here, there = (
        KeyedDataLoader(Drawing(NUMBER), **options),
        KeyedDataLoader(Drawing(NUMBER), **options, num_workers=2),
    )
    for loader in (here, there):
        loader.start_epoch(2, 3000)
    drawn = torch.cat(list(here))
    assert len(set(drawn[:, 0].tolist())) < 6000 == len(set(drawn[:, 1].tolist()))
    assert torch.equal(torch.cat(list(there)), drawn)


EQUAL: list[tuple[Order, Order]] = [
    (Shuffled(), Shuffled()),
    (Weighted([1, 2, 3]), Weighted(torch.tensor([1, 2, 3]))),
    (Weighted(torch.ones(1, 3)[:, 0]), Weighted(torch.ones(1))),
    (LengthGrouped([1, 2], group_size=4), LengthGrouped([1, 2], group_size=4, window=200)),
    (TokenBudget([1, 2, 3], 8), TokenBudget(torch.tensor([1, 2, 3], dtype=torch.int16), 8)),
    (mixture(100), mixture(100)),
    (mixture(100, SHARES, None), mixture(100, {"c": 2, "b": 3, "a": 5}, None)),
]
UNEQUAL: list[Order] = [
    *(first for first, _ in EQUAL),
    *(Sequential(), Shuffled("feistel-v1")),
    *(Weighted([1, 2, 3.5]), Weighted([1, 2, 3], replacement=False), Weighted([1, 2, 3], num_samples=2)),
    *(LengthGrouped([2, 1], group_size=4), LengthGrouped([1, 2], group_size=8)),
    *(LengthGrouped([1, 2], group_size=size, window=window) for size, window in ((4, 8), (8, 8), (4, 12))),
    *(TokenBudget([1, 2, 4], 8), TokenBudget([1, 2, 3], 9), TokenBudget([1, 2, 3], 8, max_samples=2)),
    *(ClassBalanced([0, 1, 1]), ClassBalanced([0, 1, 2]), ClassBalanced([0, 1, 1], num_samples=4)),
    *(mixture(200), mixture(100, None, None), mixture(100, None), mixture(100, SHARES, 50)),
]


def test_an_order_is_known_by_its_name_and_its_parameters() -> None:
    """A run resumes with an order that was given the same in another form, and with no other one."""
    assert [one.fingerprint for one, _ in EQUAL] == [other.fingerprint for _, other in EQUAL]
    assert len({order.fingerprint for order in UNEQUAL}) == len(UNEQUAL)


@pytest.mark.parametrize(
    ("order", "number", "digest"),
    [
        (Weighted(WEIGHTS[:1000], num_samples=900), 1000, "b66f40b9b1f42a5a"),
        (Weighted(WEIGHTS[:1000], num_samples=900, replacement=False), 1000, "15de92560340364f"),
        (mixture(100), 100, "80d548618ce6eb04"),
        (ClassBalanced(torch.arange(100) ** 2 % 7, num_samples=9000), 100, "d2eddcc1e991c792"),
    ],
)
def test_its_name_means_the_same_order_forever(order: Order, number: int, digest: str) -> None:
    """A training state of any version finds the order that it was stored with."""
    epoch = order.epoch_order(number, seed=42, epoch=7)
    drawn = epoch.indices(0, epoch.num_samples)
    assert hashlib.sha256(",".join(map(str, drawn.tolist())).encode()).hexdigest()[:16] == digest
