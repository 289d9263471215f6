"""Streams with a length: their batches are the same on any number of processes, and of workers."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info
from typing_extensions import override

from pa_data import KeyedDataLoader
from pa_data.errors import DataError, EmptyDatasetError
from pa_data.orders import LengthGrouped
from tests.support.drawing import DrawnStream, by_update_and_number, draw_after, ranks_of

OPTIONS: dict[str, Any] = {"batch_size": 3, "samples_per_update": 14, "fixed_batches": True, "seed": 5}


def in_epoch(loaders: list[KeyedDataLoader[Any]], epoch: int, position: int = 0) -> dict[tuple[int, int], Any]:
    """Return the batches of all processes in an epoch."""
    for loader in loaders:
        loader.start_epoch(epoch, position)
    return by_update_and_number(loaders)


def same(batches: dict[tuple[int, int], Tensor], expected: dict[tuple[int, int], Tensor]) -> bool:
    """Whether batches have the same places, samples and draws."""
    return batches.keys() == expected.keys() and all(batch.equal(expected[place]) for place, batch in batches.items())


def loaders_of(num_processes: int, num_workers: int = 0, **options: Any) -> list[KeyedDataLoader[Any]]:
    """Return the loaders of all processes, each with a stream of its own."""
    more: dict[str, Any] = {**OPTIONS, "num_processes": num_processes, "num_workers": num_workers, **options}
    return [KeyedDataLoader(DrawnStream(40), rank=rank, **more) for rank in range(num_processes)]


@pytest.mark.parametrize(
    ("num_processes", "num_workers"),
    [
        *((1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2), (3, 0), (3, 2), (6, 0)),
        *(pytest.param(*one, marks=pytest.mark.more_cases) for one in ((3, 1), (6, 1), (6, 2))),
    ],
)
def test_training_has_the_same_batches_and_draws_on_any_number_of_processes(
    num_processes: int, num_workers: int
) -> None:
    """Also of a stream that shuffles by what it draws, with any number of workers, in each epoch another one."""
    expected = [in_epoch(loaders_of(1), epoch) for epoch in (0, 1)]
    assert [len(batch) for batch in expected[0].values()] == [3, 3, 3, 3, 2] * 2 + [3, 3, 3, 3]
    for batches in expected:
        assert sorted(torch.cat(list(batches.values()))[:, 0].tolist()) == list(range(40))
    assert not same(*expected)
    loaders = loaders_of(num_processes, num_workers)
    assert same(in_epoch(loaders, 0), expected[0])
    assert same(in_epoch(loaders, 0), expected[0])
    assert same(in_epoch(loaders, 1), expected[1])


def test_samples_are_those_that_the_stream_yields() -> None:
    """In its order, and without a sample that is left out where one of another process comes between."""

    class Numbers(IterableDataset[int]):
        def __len__(self) -> int:
            return 10

        @override
        def __iter__(self) -> Iterator[int]:
            return iter(range(10))

    options: dict[str, Any] = {"batch_size": 2, "samples_per_update": 8, "fixed_batches": True}
    first, second = ([batch.tolist() for batch in loader] for loader in ranks_of(Numbers(), 2, **options))
    assert (first, second) == ([[0, 1], [2, 3], [8, 9]], [[4, 5], [6, 7]])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stream_is_told_the_epoch_in_training_only(num_workers: int) -> None:
    """Before it is iterated over, where it has a ``set_epoch``; an evaluation is the same each time."""
    stream = DrawnStream(40)
    (loader,) = ranks_of(stream, 1, num_workers=num_workers, **OPTIONS)
    loader.start_epoch(3)
    first = {int(number) for number in next(iter(loader))[:, 0]}
    assert (stream.epoch, loader.dataset is stream) == (3, True)
    assert first <= {15, 16, 17, 18, 19}
    next(iter(KeyedDataLoader(stream, 3, split="eval", fixed_batches=True)))
    assert stream.epoch == 3


def test_what_is_drawn_before_the_first_sample_is_the_same_everywhere() -> None:
    """Such as the order of files, drawn when an iterator is made."""

    class Files(DrawnStream):
        @override
        def __iter__(self) -> Iterator[Tensor]:
            numbers = random.sample(range(40), 40)
            return (self.samples[number] for number in numbers)

    def batches(num_processes: int) -> dict[tuple[int, int], Any]:
        random.seed(num_processes)  # the process itself may be anywhere
        return in_epoch(ranks_of(Files(40), num_processes, **OPTIONS), 0)

    assert same(batches(3), batches(1))


@pytest.mark.parametrize("num_processes", [1, 2, 3])
def test_an_epoch_goes_on_at_any_update_on_another_number_of_processes(num_processes: int) -> None:
    """With the draws that it would have had."""
    expected = in_epoch(loaders_of(2), 3)
    for position in (14, 28):
        left = {place: batch for place, batch in expected.items() if place[0] >= position}
        assert same(in_epoch(loaders_of(num_processes), 3, position), left)


def test_samples_that_fill_no_update_can_be_left_out() -> None:
    """The stream is read to its end all the same."""
    expected = in_epoch(loaders_of(1), 0)
    whole = {place: batch for place, batch in expected.items() if place[0] < 28}
    assert same(in_epoch(loaders_of(3, drop_last=True), 0), whole)


@pytest.mark.parametrize("num_samples", [1, 2, 6, 20])
def test_an_evaluation_has_the_same_batches_on_any_number_of_processes(num_samples: int) -> None:
    """They are dealt in turn, and come again, even if the evaluation before was left early."""
    expected = list(KeyedDataLoader(DrawnStream(num_samples), 3, split="eval"))
    for num_processes in range(1, 8):
        options: dict[str, Any] = {"batch_size": 3, "split": "eval", "fixed_batches": True}
        loaders = ranks_of(DrawnStream(num_samples), num_processes, **options)
        for loader in loaders:
            next(iter(loader), None)
        iterators = [iter(loader) for loader in loaders]
        dealt = chain.from_iterable([next(one, None) for one in iterators] for _ in range(loaders[0].num_steps(0)))
        batches = [batch for batch in dealt if batch is not None]
        assert all(one.equal(other) for one, other in zip(batches, expected, strict=True))


def test_a_batch_is_made_of_the_same_draws() -> None:
    """What the collation draws does not follow from what was read for other processes."""

    def collate(samples: list[Tensor]) -> Tensor:
        return torch.stack(samples) + torch.rand(())

    expected = in_epoch(loaders_of(1, collate_fn=collate), 0)
    assert same(in_epoch(loaders_of(2, collate_fn=collate), 0), expected)


def test_the_process_draws_as_if_it_read_nothing() -> None:
    """Its own RNG states are left alone."""
    for loader in loaders_of(2):
        assert draw_after(loader) == draw_after(())


def test_the_batch_of_another_process_can_be_fetched() -> None:
    """While this process reads on, a second iterator reads behind the first."""
    first, second = loaders_of(2)
    expected, batches = list(first), iter(second)
    next(batches)
    fetched = [second.fetch_for(step, rank=0) for step in (1, 2, 5)]
    assert all(one.equal(expected[step]) for one, step in zip(fetched, (1, 2, 5), strict=True))
    assert next(batches).equal(list(loaders_of(2)[1])[1])


def errors_of(num_processes: int, num_samples: int, **options: Any) -> list[tuple[int, str]]:
    """Return for each process the update in which it fails, and what was given."""
    found: list[tuple[int, str]] = []
    more: dict[str, Any] = {**OPTIONS, "num_processes": num_processes, **options}
    for rank in range(num_processes):
        loader = KeyedDataLoader(DrawnStream(num_samples, length=40), rank=rank, **more)
        split, batches = loader.split, iter(loader)
        for step in (step for step in range(len(split)) if split.piece(step, rank)):
            try:
                next(batches)
            except DataError as error:
                found.append((split.update(step).start, str(error)))
                break
    return found


@pytest.mark.parametrize("num_processes", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("num_samples", "given"),
    [(0, "0 samples"), (20, "20 samples"), (27, "27 samples"), (39, "39 samples"), (41, "more than 40 samples")],
)
@pytest.mark.parametrize("more", [{}, {"drop_last": True}], ids=["all", "whole updates"])
def test_another_number_of_samples_than_the_length_is_an_error_of_all_processes(
    num_processes: int, num_samples: int, given: str, more: dict[str, Any]
) -> None:
    """In the same update, so that none waits for another one, even if one has nothing in the last update."""
    errors = errors_of(num_processes, num_samples, **more)
    assert len(errors) == num_processes
    assert len(set(errors)) == 1
    assert f"{given} of DrawnStream, whose length is 40" in errors[0][1]


class Divided(DrawnStream):
    """Gives each worker a part of its samples."""

    @override
    def __iter__(self) -> Iterator[Tensor]:
        info = get_worker_info()
        for number, sample in enumerate(super().__iter__()):
            if info is None or number % info.num_workers == info.id:
                yield sample


def test_a_stream_that_divides_itself_is_found_out() -> None:
    """By its length: of two workers, each has too few samples."""
    with pytest.raises(DataError, match=r"number of samples than its length(.|\n)*must not divide"):
        list(KeyedDataLoader(Divided(40), num_workers=2, **OPTIONS))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"shuffle": True}, r"read in its own order(.|\n)*Shuffled"),
        ({"order": LengthGrouped([1] * 40, group_size=4)}, r"read in its own order(.|\n)*LengthGrouped"),
        ({"num_workers": 1, "persistent_workers": True}, "leave out persistent_workers=True"),
        ({"whole_batches": True}, "whole_batches=True"),
    ],
)
def test_what_a_stream_cannot_follow_is_refused(options: dict[str, Any], match: str) -> None:
    """Before it is read."""
    with pytest.raises(DataError, match=match):
        KeyedDataLoader(DrawnStream(40), **{**OPTIONS, **options})


def test_an_empty_stream_is_refused() -> None:
    """As an empty dataset is."""
    with pytest.raises(EmptyDatasetError):
        KeyedDataLoader(DrawnStream(0))


class Broken(DrawnStream):
    """Fails at its fourth sample."""

    @override
    def __iter__(self) -> Iterator[Tensor]:
        for number, sample in enumerate(super().__iter__()):
            if number == 3:
                raise OSError("the file ends here")
            yield sample


def test_errors_name_the_position_and_the_stream() -> None:
    """Of a sample that cannot be read, and of samples that make no batch."""
    with pytest.raises(OSError, match="the file ends here") as caught:
        list(KeyedDataLoader(Broken(40), 2))
    assert "Raised for sample 3 of Broken." in caught.value.__notes__

    class Growing(DrawnStream):
        @override
        def __iter__(self) -> Iterator[Tensor]:
            return (torch.ones(number + 1) for number in range(len(self)))

    with pytest.raises(RuntimeError) as caught_in_batch:
        list(KeyedDataLoader(Growing(40), 2))
    assert re.search("made of samples 0, 1 of Growing", "".join(caught_in_batch.value.__notes__))
