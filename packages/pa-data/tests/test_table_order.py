"""Orders of a user's own, as tables of whole epochs."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_data import KeyedDataLoader
from pa_data.errors import ArgumentTypeError, ConfigurationError, ExplainedError
from pa_data.orders import Order, TableOrder
from tests.support.drawing import Drawing
from tests.support.explained import assert_explained

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


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (torch.rand(10), "torch.float32 from Drawn.indices_of_epoch()"),
        (torch.ones(10, dtype=torch.bool), "torch.bool from Drawn.indices_of_epoch()"),
        (torch.arange(10)[None], "of shape (1, 10)"),
        ("a", "of type str"),
        (None, "of type NoneType"),
        (torch.arange(10) + 1, "10 at position 9"),
        (torch.arange(10) - 1, "-1 at position 0"),
        (torch.arange(10 - 1), "9 indices"),
    ],
)
def test_what_are_no_indices_of_samples_is_refused(given: Any, found: str) -> None:
    """The message names the method, and what it returned."""
    with pytest.raises(ExplainedError) as refused:
        ids(Drawn(lambda _: given))
    assert_explained(refused.value)
    assert found in str(refused.value)
    assert "Drawn.indices_of_epoch()" in str(refused.value)


@pytest.mark.parametrize("length", [0, -1, 2.5])
def test_an_epoch_has_a_number_of_samples(length: Any) -> None:
    """An epoch of no samples, or of a part of one, is refused."""
    with pytest.raises(ConfigurationError, match="length_of_epoch") as refused:
        ids(Drawn(torch.arange, length))
    assert_explained(refused.value)


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


@pytest.mark.parametrize("value", [object(), np.array([object()]), [DATA]])
def test_a_parameter_that_says_nothing_of_what_it_holds_is_refused(value: Any) -> None:
    """An object would be another one in each process."""
    with pytest.raises(ArgumentTypeError, match="weighs-v1: thing") as refused:
        _ = Weighs(thing=value).fingerprint
    assert_explained(refused.value)


class Nameless(TableOrder):
    """An order that no training state could know."""

    @override
    def indices_of_epoch(self, num_samples: int, epoch: int) -> Tensor:
        return torch.arange(num_samples)


def test_an_order_needs_a_name() -> None:
    """The message has the line to write."""
    with pytest.raises(ArgumentTypeError, match='name = "nameless-v1" in Nameless') as refused:
        ids(Nameless())
    assert_explained(refused.value)
