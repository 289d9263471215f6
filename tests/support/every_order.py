"""One of each order that comes with pa_data, and the updates that loaders make of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, TypeAlias

import torch
from torch import Tensor
from typing_extensions import override

from pa_data import KeyedDataLoader
from pa_data.files import ShardOrder
from pa_data.orders import (
    ClassBalanced,
    Curriculum,
    LengthGrouped,
    Mixture,
    Order,
    Sequential,
    Shuffled,
    TableOrder,
    TokenBudget,
    Weighted,
)
from tests.support.drawing import Drawing

Update: TypeAlias = list[list[float]]
"""What `Drawing` returned for each sample of an update: its number, and three draws."""

NUM_SAMPLES = 45
SAMPLES_PER_UPDATE, BATCHES_PER_UPDATE = 8, 4
WEIGHTS = torch.arange(NUM_SAMPLES) % 5


class EveryOtherTwice(TableOrder):
    """An order of a user's own, in which samples come again."""

    name = "every-other-twice-v1"

    @override
    def indices_of_epoch(self, num_samples: int, epoch: int) -> Tensor:
        return torch.randperm(num_samples) // 2 * 2


def chosen(epoch: int) -> Tensor:
    """More samples in each epoch."""
    return torch.arange(NUM_SAMPLES) < 20 + 7 * epoch


ORDERS: dict[str, Order] = {
    "Sequential": Sequential(),
    "Shuffled": Shuffled(),
    "Shuffled, feistel": Shuffled("feistel-v1"),
    "Weighted": Weighted(WEIGHTS),
    "Weighted, without replacement": Weighted(WEIGHTS, replacement=False),
    "ClassBalanced": ClassBalanced((torch.arange(NUM_SAMPLES) % 7).clamp(max=2)),
    "Mixture": Mixture({"a": Drawing(30), "b": Drawing(15)}, weights={"a": 1, "b": 3}).default_order,
    "Curriculum": Curriculum(chosen),
    "TableOrder": EveryOtherTwice(),
    "LengthGrouped": LengthGrouped((torch.arange(NUM_SAMPLES) * 7) % 23 + 1, group_size=4, window=16),
    "TokenBudget": TokenBudget((torch.arange(NUM_SAMPLES) * 7) % 23 + 1, max_tokens=50),
    "ShardOrder": ShardOrder(("a", "b", "c"), (20, 1, 24), window=12, lanes=2, block=3),
}


def makes_batches(order: Order) -> bool:
    """Whether the order itself says which samples are a batch."""
    return order.epoch_order(NUM_SAMPLES, seed=0, epoch=0).batch_ends is not None


def loaders_of(order: Order, num_processes: int, **options: Any) -> list[KeyedDataLoader[Tensor]]:
    """The loaders of all processes of a run, which make the same updates however many they are."""
    if not makes_batches(order):
        options["batch_size"] = SAMPLES_PER_UPDATE // num_processes
    return [
        KeyedDataLoader(Drawing(NUM_SAMPLES), order=order, rank=rank, num_processes=num_processes, **options)
        for rank in range(num_processes)
    ]


def updates_of(loaders: Sequence[KeyedDataLoader[Tensor]], epoch: int, position: int = 0) -> list[Update]:
    """The updates of an epoch from a position on: what all processes have in a step, and in the steps of an update."""
    for loader in loaders:
        loader.start_epoch(epoch, position)
    steps = [joined(step) for step in zip_longest(*loaders)]
    number = BATCHES_PER_UPDATE // len(loaders) if loaders[0].order.batch_ends is not None else 1
    return [
        [sample for step in steps[first : first + number] for sample in step] for first in range(0, len(steps), number)
    ]


def joined(batches: Iterable[Tensor | None]) -> Update:
    """The samples of several batches, one after the other; a process may have none."""
    return [sample for batch in batches if batch is not None for sample in batch.tolist()]
