"""What a hand-written loop relies on when it saves where a loader is, and starts again there."""

from __future__ import annotations

import gc
import json
import re
import weakref
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from pa_data import KeyedDataLoader
from pa_data.errors import DataError
from pa_data.orders import TokenBudget, Weighted
from tests.support.drawing import Drawing, Indices, indices_of
from tests.support.killed_examples import run_undisturbed_and_killed

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_workers_have_prefetched_is_not_counted(num_workers: int) -> None:
    """The state is that of the batch in the loop, and after a resume each sample draws what it would have drawn."""
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 2}
    whole = list(KeyedDataLoader(Drawing(40), **options))
    loader = KeyedDataLoader(Drawing(40), num_workers=num_workers, **options)
    for step, _ in enumerate(loader):
        state = loader.state_dict()
        assert (state["epoch"], state["samples"]) == ((0, 4 * step + 4) if step < 9 else (1, 0))
        if step == 2:
            break
    resumed = KeyedDataLoader(Drawing(40), **options)
    resumed.load_state_dict(loader.state_dict())
    assert all(one.equal(other) for one, other in zip(resumed, whole[3:], strict=True))


def test_a_loop_over_epochs_continues_where_it_was() -> None:
    """`set_epoch` keeps the position of the epoch that was resumed, and begins all others at their first sample."""
    options: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 1}
    calm = KeyedDataLoader(Indices(10), **options)
    seen: list[list[list[int]]] = []
    states: list[dict[str, int | str]] = []
    for epoch in range(3):
        calm.set_epoch(epoch)
        seen.append([])
        for batch in calm:
            seen[-1].append(indices_of([batch])[0])
            states.append(calm.state_dict())

    for number, state in enumerate(states):
        loader = KeyedDataLoader(Indices(10), **options)
        loader.load_state_dict(json.loads(json.dumps(state)))
        rest: list[list[int]] = []
        for epoch in range(loader.epoch, 3):
            loader.set_epoch(epoch)
            rest += indices_of(loader)
        assert rest == [*chain.from_iterable(seen)][number + 1 :]


def test_an_order_that_makes_the_batches_continues_at_a_batch() -> None:
    """A budget of tokens gives the same batches after a resume."""
    order = TokenBudget([3, 1, 4, 1, 5, 9, 2, 6, 5, 3], max_tokens=12)
    loader = KeyedDataLoader(Indices(10), order=order, seed=4, batch_size=None)
    whole = indices_of(loader)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    loader.load_state_dict(loader.state_dict())
    assert indices_of(loader) == whole[2:]


def test_an_evaluation_is_repeated() -> None:
    """It has no position: a state that is taken in the middle begins it again."""
    loader = KeyedDataLoader(Indices(10), 4, split="eval")
    next(iter(loader))
    other = KeyedDataLoader(Indices(10), 4, split="eval")
    other.load_state_dict(loader.state_dict())
    assert indices_of(other) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"seed": 8}, "seed=7"),
        ({"shuffle": False}, "order='shuffled-v1"),
        ({"order": Weighted([1.0] * 10)}, "order='shuffled-v1"),
        ({"dataset": Indices(11)}, "dataset_samples=10"),
    ],
    ids=["seed", "sequence", "order", "dataset"],
)
def test_a_state_in_which_the_position_means_other_samples_is_an_error(options: dict[str, Any], named: str) -> None:
    """Of another seed, order or dataset, it names what differs, and the loader stays where it is."""
    saved = KeyedDataLoader(Indices(10), 4, shuffle=True, seed=7).state_dict()
    arguments: dict[str, Any] = {"dataset": Indices(10), "batch_size": 4, "shuffle": True, "seed": 7, **options}
    loader: KeyedDataLoader[Any] = KeyedDataLoader(**arguments)
    loader.start_epoch(3, 4)
    with pytest.raises(DataError, match=re.escape(named)):
        loader.load_state_dict(saved)
    assert (loader.epoch, loader.position) == (3, 4)


@pytest.mark.parametrize("wrong", [{}, {"epoch": -1}, {"samples": "4"}, {"version": 2}], ids=str)
def test_something_else_than_a_state_is_an_error(wrong: dict[str, Any]) -> None:
    """A state of another loader, or of a later version, is not taken for a position."""
    loader = KeyedDataLoader(Indices(10), 4)
    with pytest.raises(DataError, match="not one of this loader"):
        loader.load_state_dict({**loader.state_dict(), **wrong} if wrong else {})


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.more_cases)])
def test_the_example_of_the_readme_ends_the_same_however_often_it_is_killed(tmp_path: Path, kills: int) -> None:
    """Killed at random moments and started again, it ends with the weights of a run that nobody killed."""
    folders = run_undisturbed_and_killed(README, "optimizer.step()", 0.02, kills=kills, folder=tmp_path)
    calm, killed = (torch.load(folder / "state.pt") for folder in folders)
    assert calm["loader"] == killed["loader"]
    assert (calm["loader"]["epoch"], calm["loader"]["samples"]) == (4, 0)
    assert all(weight.equal(killed["model"][name]) for name, weight in calm["model"].items())


def test_a_loader_is_gone_as_soon_as_nobody_has_it() -> None:
    """Its workers end with it, not when the garbage collector comes by."""
    loader = KeyedDataLoader(Indices(4), 2)
    next(iter(loader))
    gone = weakref.ref(loader)
    gc.disable()
    try:
        del loader
        assert gone() is None
    finally:
        gc.enable()


def test_a_trainer_may_choose_the_epoch_by_the_sampler() -> None:
    """As torch's samplers take it; an epoch that is chosen later by the loader itself counts."""
    loader = KeyedDataLoader(Indices(10), 4, shuffle=True)
    choice: Any = getattr(loader.batch_sampler, "sampler", None)
    choice.set_epoch(3)
    in_epoch_3 = indices_of(loader)
    assert loader.epoch == 3
    choice.set_epoch(5)
    loader.start_epoch(3)
    assert indices_of(loader) == in_epoch_3


@pytest.mark.parametrize(
    ("number", "batch_size", "samples"), [(7, 2, 5), (23, 4, 6), (9, 1, 4), (31, 8, 7), (12, 3, 12)]
)
def test_a_loader_that_drops_the_last_update_resumes_within_any(number: int, batch_size: int, samples: int) -> None:
    """After any batch, the rest is what would have followed: no sample is lost, and none that was dropped comes."""

    def loader() -> KeyedDataLoader[Any]:
        data = TensorDataset(torch.arange(number))
        return KeyedDataLoader(data, batch_size, True, samples_per_update=samples, drop_last=True, seed=1)

    whole, taken = loader(), list[int]()
    expected = [int(index) for (batch,) in loader() for index in batch]
    for (batch,) in whole:
        taken += batch.tolist()
        resumed = loader()
        resumed.load_state_dict(whole.state_dict())
        if resumed.epoch == 0:
            assert taken + [int(index) for (rest,) in resumed for index in rest] == expected
    assert taken == expected
    assert len(expected) == number - number % samples
