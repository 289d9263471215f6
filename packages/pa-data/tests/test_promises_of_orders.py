"""What every order promises: epochs that follow from seed and epoch alone, wherever they begin."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch

from pa_data import KeyedDataLoader
from pa_data.orders import ClassBalanced, LengthGrouped, Mixture, Order, TokenBudget, Weighted
from tests.support.drawing import Drawing, Indices, indices_of, ranks_of

NUMBER = 1000
LENGTHS = torch.randint(1, 500, (NUMBER,), generator=torch.Generator().manual_seed(0))
WEIGHTS = [(index * 37 % 101) / 7 for index in range(NUMBER)]
DATASETS = {"a": Indices(100), "b": Indices(300), "c": Indices(600)}

REPEATING: dict[str, Order] = {
    "weighted": Weighted(WEIGHTS, num_samples=9000),
    "mixture": Mixture(DATASETS, weights={"a": 0.5, "b": 0.3, "c": 0.2}, num_samples=9000).default_order,
    "class balanced": ClassBalanced(torch.arange(NUMBER) ** 2 % 7, num_samples=9000),
}
ORDERS: dict[str, Order] = {
    **REPEATING,
    "without replacement": Weighted(WEIGHTS, num_samples=900, replacement=False),
    "length grouped": LengthGrouped(LENGTHS, group_size=32, window=640),
    "token budget": TokenBudget(LENGTHS, max_tokens=512),
}
EQUAL_BATCHES = {name: order for name, order in ORDERS.items() if not order.makes_batches}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_any_part_is_a_part_of_the_whole(order: Order) -> None:
    """Any part of an epoch, requested by itself, is that part of the whole; no global generator is drawn from."""
    before = torch.get_rng_state()
    epoch = order.epoch_order(NUMBER, seed=1, epoch=2)
    end = epoch.num_samples
    whole, again = epoch.indices(0, end), order.epoch_order(NUMBER, seed=1, epoch=2)
    for start, stop in [(0, end), (5, 5), (end - 1, end), (end, end), (630, 650), (100, 350), (3, end - 10), (0, 3)]:
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
        loader.start_epoch(2, 6000)
    drawn = torch.cat(list(here))
    assert len(set(drawn[:, 0].tolist())) < 3000 == len(set(drawn[:, 1].tolist()))
    assert torch.equal(torch.cat(list(there)), drawn)


@pytest.mark.parametrize("num_processes", [2, 3, 4])
@pytest.mark.parametrize("order", EQUAL_BATCHES.values(), ids=EQUAL_BATCHES)
def test_processes_share_what_one_process_draws(order: Order, num_processes: int) -> None:
    """Each update has the samples that it has on one process."""
    (alone,) = ranks_of(Indices(NUMBER), 1, batch_size=60, order=order, seed=1)
    together = ranks_of(Indices(NUMBER), num_processes, batch_size=60 // num_processes, order=order, seed=1)
    updates = zip(*map(indices_of, together), strict=True)
    assert [[index for batch in update for index in batch] for update in updates] == indices_of(alone)


@pytest.mark.parametrize(
    ("order", "number", "digest"),
    [
        (Weighted(WEIGHTS, num_samples=900), NUMBER, "b66f40b9b1f42a5a"),
        (Weighted(WEIGHTS, num_samples=900, replacement=False), NUMBER, "15de92560340364f"),
        (
            Mixture(
                {"a": Indices(10), "b": Indices(30), "c": Indices(60)},
                weights={"a": 0.5, "b": 0.3, "c": 0.2},
                num_samples=9000,
            ).default_order,
            100,
            "80d548618ce6eb04",
        ),
        (ClassBalanced(torch.arange(100) ** 2 % 7, num_samples=9000), 100, "d2eddcc1e991c792"),
    ],
)
def test_its_name_means_the_same_order_forever(order: Order, number: int, digest: str) -> None:
    """A training state of any version finds the order that it was stored with."""
    epoch = order.epoch_order(number, seed=42, epoch=7)
    drawn = epoch.indices(0, epoch.num_samples)
    assert hashlib.sha256(",".join(map(str, drawn.tolist())).encode()).hexdigest()[:16] == digest
