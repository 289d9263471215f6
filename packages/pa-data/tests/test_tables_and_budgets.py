"""Orders of a user's own, as tables of whole epochs, and token budgets, the same for every division of the work."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_data import KeyedDataLoader
from pa_data.errors import DataError
from pa_data.orders import Order, TableOrder, TokenBudget
from tests.support.drawing import Drawing, Indices

DATA = TensorDataset(torch.arange(10))


class Drawn(TableOrder):
    """Calls a function for the indices, which may draw."""

    name = "drawn-v1"

    def __init__(self, draw: Callable[[int], Any], length: int | None = None) -> None:
        self.draw, self.length = draw, length

    @override
    def indices_of_epoch(self, num_samples: int, epoch: int) -> Any:
        return self.draw(num_samples)

    @override
    def length_of_epoch(self, num_samples: int, epoch: int) -> int:
        return num_samples if self.length is None else self.length


def ids(order: Order, epoch: int = 0, seed: int = 3, position: int = 0) -> list[int]:
    """What a loader yields of ten samples."""
    loader = KeyedDataLoader(DATA, 4, order=order, seed=seed)
    loader.start_epoch(epoch, position)
    return [int(one) for (batch,) in loader for one in batch]


def of_random(number: int) -> list[int]:
    """A permutation by Python's generator."""
    return random.sample(range(number), number)


@pytest.mark.parametrize("draw", [torch.randperm, np.random.permutation, of_random])
def test_what_an_order_draws_follows_from_the_seed_and_the_epoch(draw: Callable[[int], Any]) -> None:
    """The global generators are keyed while a table is made, and are afterwards as they were."""
    order, before = Drawn(draw), torch.get_rng_state()
    state_of_python = random.getstate()
    first = ids(order)
    assert torch.equal(torch.get_rng_state(), before)
    assert random.getstate() == state_of_python
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    assert ids(Drawn(draw)) == first
    assert sorted(first) == list(range(10))
    assert first not in (ids(order, epoch=1), ids(order, seed=4))
    assert ids(order, position=4) == first[4:]


def test_an_epoch_may_have_another_length_and_repeat_samples() -> None:
    """A table may visit a part of the dataset, or some of it several times."""
    assert ids(Drawn(lambda _: [7, 7, 1], length=3)) == [7, 7, 1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sample_that_repeats_draws_other_numbers(num_workers: int) -> None:
    """Draws follow from the position in the epoch, where a sample may come more than once."""
    order = Drawn(lambda number: [7] * number)
    loader = KeyedDataLoader(Drawing(10), 4, order=order, seed=3, num_workers=num_workers)
    draws = [float(draw) for batch in loader for draw in batch[:, 1]]
    assert len(set(draws)) == 10
    loader.start_epoch(0, 6)
    assert [float(draw) for batch in loader for draw in batch[:, 1]] == draws[6:]


class Weighs(TableOrder):
    """An order with parameters of many kinds."""

    name = "weighs-v1"

    def __init__(self, **parameters: Any) -> None:
        vars(self).update(parameters)

    @override
    def indices_of_epoch(self, num_samples: int, epoch: int) -> Tensor:
        return torch.arange(num_samples)


def test_parameters_of_an_order_are_its_identity() -> None:
    """By default these are the public attributes; equal ones are the same order in every process."""
    kinds: list[dict[str, Any]] = [
        {},
        {"a": 1},
        {"a": 1.0},
        {"a": True},
        {"a": "1"},
        {"b": 1},
        {"a": [1, 2]},
        {"a": [[1], 2]},
        {"a": torch.tensor([1, 2])},
        {"a": torch.tensor([1, 2], dtype=torch.int32)},
        {"a": torch.tensor([[1, 2]])},
        {"a": torch.ones(2, dtype=torch.bfloat16)},
        {"a": torch.ones(())},
        {"a": np.array([2.0, 1.0])},
        {"a": {"x": 1, "y": 2}},
        {"a": {"x": 1, "y": 3}},
        {"a": {"x", "y"}},
        {"a": Path("x")},
        {"a": torch.randperm},
        {"a": max},
        {"a": None},
    ]
    names = [Weighs(**kind).fingerprint for kind in kinds]
    assert len(set(names)) == len(kinds)
    assert [Weighs(**kind).fingerprint for kind in kinds] == names
    assert Weighs(a=1, _cache=2).fingerprint == Weighs(a=1).fingerprint
    assert Weighs(x={"y": 2, "z": 1}).fingerprint == Weighs(x={"z": 1, "y": 2}).fingerprint
    # Stored in training states, so these must stay what they are.
    assert names[:2] == ["weighs-v1", "weighs-v1 9c82a2bf863d"]
    assert Weighs(a=torch.arange(3)).fingerprint == "weighs-v1 202cdbb0e5e0"


GENERATOR = torch.Generator().manual_seed(0)
LENGTHS = (torch.randn(1000, generator=GENERATOR).mul(0.8).add(3).exp().long() + 1).clamp(max=400)
MANY = LENGTHS.repeat(20)


def batches(order: Order, num_samples: int = len(LENGTHS), *, seed: int = 3, epoch: int = 0) -> list[list[int]]:
    """The samples of each batch of an epoch, as the order itself gives them."""
    one = order.epoch_order(num_samples, seed=seed, epoch=epoch)
    assert one.batch_ends is not None
    ends: list[int] = [0, *one.batch_ends.tolist()]
    return [one.indices(begin, end).tolist() for begin, end in pairwise(ends)]


def padded(batch: list[int], multiple: int = 1) -> int:
    """The tokens of a batch, with padding."""
    longest = max(1, int(LENGTHS[batch].max()))
    return len(batch) * (-(-longest // multiple) * multiple)


@pytest.mark.parametrize("growth", [1.0, 1.1, 3.0])
def test_a_batch_is_never_above_the_budget(growth: float) -> None:
    """Each epoch has each sample once, in batches of at most so many tokens."""
    order = TokenBudget(LENGTHS, max_tokens=512, bucket_growth=growth)
    for epoch in range(3):
        made = batches(order, epoch=epoch)
        assert len(made) == order.num_batches
        assert max(map(padded, made)) <= 512
        assert sorted(chain(*made)) == list(range(1000))


def test_little_of_a_batch_is_padding() -> None:
    """Of many samples, less than a twentieth of the tokens is padding, and batches are nearly full."""
    order = TokenBudget(MANY, max_tokens=2048)
    made = batches(order, len(MANY))
    tokens = int(MANY.sum())
    assert tokens / sum(len(batch) * int(MANY[batch].max()) for batch in made) > 0.95
    assert tokens / (2048 * len(made)) > 0.9


def test_samples_and_batches_are_shuffled() -> None:
    """Short and long batches come in a random order, and have other members in each epoch and for each seed."""
    order = TokenBudget(MANY, max_tokens=1024)
    first, second, other = (
        batches(order, len(MANY), seed=seed, epoch=epoch) for seed, epoch in ((3, 0), (3, 1), (4, 0))
    )
    members = [{frozenset(batch) for batch in made} for made in (first, second, other)]
    for one, another in ((0, 1), (0, 2), (1, 2)):
        assert len(members[one] & members[another]) < len(first) / 20
    longest = torch.tensor([float(MANY[batch].max()) for batch in first])
    later = torch.arange(len(longest), dtype=torch.float32)
    assert abs(torch.corrcoef(torch.stack([longest, later]))[0, 1]) < 0.2


def test_the_number_of_batches_is_that_of_every_epoch() -> None:
    """Steps and schedules can be planned: neither the seed nor the epoch changes how many batches there are."""
    order = TokenBudget(LENGTHS, max_tokens=512)
    sizes = {tuple(sorted(map(len, batches(order, seed=seed, epoch=epoch)))) for seed in range(3) for epoch in range(3)}
    assert len(sizes) == 1


def test_limits_beside_the_budget() -> None:
    """Batches have at most ``max_samples``, and stay within the budget where they are padded to a multiple."""
    order = TokenBudget(LENGTHS, max_tokens=512, max_samples=16, pad_to_multiple_of=8)
    made = batches(order)
    assert max(map(len, made)) == 16
    assert 480 <= max(padded(batch, multiple=8) for batch in made) <= 512


@pytest.mark.parametrize("lengths", [[5], [0, 0, 0], [7] * 20, [1, 2, 4, 8, 16, 32]])
def test_few_samples(lengths: list[int]) -> None:
    """One sample, empty ones and equal ones make batches too."""
    made = batches(TokenBudget(lengths, max_tokens=32), len(lengths))
    assert sorted(chain(*made)) == list(range(len(lengths)))
    assert all(len(batch) * max(lengths[index] for index in batch) <= 32 for batch in made)


def test_a_position_within_a_batch_is_refused() -> None:
    """Nothing is trained on twice or never because a position was counted in another order."""
    with pytest.raises(DataError, match="start=1, within batch 0 of"):
        KeyedDataLoader(Indices(1000), order=TokenBudget(LENGTHS, max_tokens=1024)).start_epoch(0, 1)
