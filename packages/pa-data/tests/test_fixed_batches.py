"""Batches that are the same on any number of processes, in training and evaluation."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor

from pa_data import BatchSplit, KeyedDataLoader
from pa_data.errors import DataError
from pa_data.orders import Weighted
from tests.support.drawing import Drawing, Indices, by_update_and_number, indices_of, ranks_of

OPTIONS: dict[str, Any] = {
    "batch_size": 3,
    "samples_per_update": 14,
    "fixed_batches": True,
    "shuffle": True,
    "seed": 5,
}


def assert_same(batches: dict[tuple[int, int], Tensor], expected: dict[tuple[int, int], Tensor]) -> None:
    """Assert that batches have the same places, samples and draws."""
    assert batches.keys() == expected.keys()
    assert all(batch.equal(expected[place]) for place, batch in batches.items())


@pytest.mark.parametrize("num_processes", [1, 2, 3, 6])
@pytest.mark.parametrize("more", [{}, {"order": Weighted([1.0, 2.0] * 20)}], ids=["shuffled", "repeating"])
def test_training_has_the_same_batches_and_draws_on_any_number_of_processes(
    num_processes: int, more: dict[str, Any]
) -> None:
    """Also with samples that come several times, and with processes that have nothing in some steps, or at all."""
    options = {**OPTIONS, **more}
    expected = by_update_and_number(ranks_of(Drawing(40), 1, **options))
    assert [len(batch) for batch in expected.values()] == [3, 3, 3, 3, 2] * 2 + [3, 3, 3, 3]
    loaders = ranks_of(Drawing(40), num_processes, **options)
    assert_same(by_update_and_number(loaders), expected)
    assert [len(loader) for loader in loaders] == [len(list(loader)) for loader in loaders]
    assert {loader.num_steps(0) for loader in loaders} == {len(loaders[0])}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_another_number_of_processes_goes_on_at_the_next_update(num_workers: int) -> None:
    """Between updates each process saves the same place; within one, that at which the update began."""
    expected = by_update_and_number(ranks_of(Drawing(36), 1, **OPTIONS))
    for loader in ranks_of(Drawing(36), 2, num_workers=num_workers, **OPTIONS):
        split, batches = loader.split, iter(loader)
        for step in range(len(split)):
            if split.piece(step, loader.rank):
                next(batches)
            state, update = loader.state_dict(), split.update(step)
            if step + 1 == len(split) or split.update(step + 1) != update:
                assert (state["epoch"], state["samples"]) == ((0, update.stop) if update.stop < 36 else (1, 0))
            elif loader.rank == 0:
                assert (state["epoch"], state["samples"]) == (0, update.start)
            if state["epoch"] == 0:
                resumed = ranks_of(Drawing(36), 3, **OPTIONS)
                for other in resumed:
                    other.load_state_dict(state)
                left = {place: batch for place, batch in expected.items() if place[0] >= resumed[0].position}
                assert_same(by_update_and_number(resumed), left)


def test_the_batch_of_another_process_can_be_fetched() -> None:
    """A process whose block is over computes with one of rank 0 in its place."""
    loaders = ranks_of(Drawing(40), 2, **OPTIONS)
    assert loaders[1].split.piece(2, 1) == range(14, 14)
    assert loaders[1].fetch_for(2, rank=0).equal(list(loaders[0])[2])


@pytest.mark.parametrize("num_samples", [1, 2, 6, 20])
def test_an_evaluation_has_the_same_batches_on_any_number_of_processes(num_samples: int) -> None:
    """They are dealt in turn; there may be fewer batches, and samples, than processes."""
    expected = list(KeyedDataLoader(Drawing(num_samples), 3, split="eval"))
    for num_processes in range(1, 8):
        loaders = ranks_of(Drawing(num_samples), num_processes, batch_size=3, split="eval", fixed_batches=True)
        iterators = [iter(loader) for loader in loaders]
        dealt = chain.from_iterable([next(one, None) for one in iterators] for _ in range(loaders[0].num_steps(0)))
        batches = [batch for batch in dealt if batch is not None]
        assert all(one.equal(other) for one, other in zip(batches, expected, strict=True))
        assert isinstance(loaders[0].split, BatchSplit)


def test_an_evaluation_with_fixed_batches_is_repeated() -> None:
    """It has no position, like any other one."""
    loader = KeyedDataLoader(Indices(10), 4, split="eval", fixed_batches=True)
    next(iter(loader))
    assert (loader.state_dict()["samples"], loader.position) == (0, 0)
    with pytest.raises(DataError, match="always begins at its first sample: leave out position=4"):
        loader.start_epoch(0, 4)
    assert indices_of(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_updates_of_few_samples_have_a_true_length_where_samples_repeat() -> None:
    """Without fixed batches, too, a process may have nothing in some steps of an epoch; each draw is its own."""
    order = Weighted([1.0] * 9)
    options: dict[str, Any] = {"batch_size": 2, "samples_per_update": 3, "order": order}
    whole = torch.cat(list(KeyedDataLoader(Drawing(9), **options)))
    loaders = ranks_of(Drawing(9), 2, **options)
    assert [len(loader) for loader in loaders] == [len(list(loader)) for loader in loaders] == [3, 0]
    assert torch.cat(list(loaders[0])).equal(whole)
