"""The split of an epoch over processes: every sample exactly once, in order, by arithmetic alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pa_data import BatchSplit, EvalSplit, Split, UpdateSplit
from pa_data.errors import DataError
from tests.support.drawing import number_in_update

# Every combination: 70 lengths x 6 batch sizes x 7 numbers of processes.
GRID = list(itertools.product(range(1, 71), (1, 2, 3, 4, 5, 8), (1, 2, 3, 4, 5, 7, 8)))

large = st.integers(1, 10**12)
batch_sizes = st.integers(1, 5000)
processes = st.integers(1, 3000)


def whole_batches(num_samples: int, batch_size: int, num_processes: int, **more: Any) -> UpdateSplit:
    """Return the split of an epoch whose updates are one batch of each process."""
    return UpdateSplit(num_samples, batch_size * num_processes, batch_size, num_processes, **more)


fixed_batches = partial(UpdateSplit, fixed_batches=True)


def pieces(split: Split, step: int) -> list[range]:
    """Return what each process takes in a step."""
    return [split.piece(step, rank) for rank in range(split.num_processes)]


def positions(split: Split) -> list[int]:
    """Return the positions of all steps, in the order of steps and ranks."""
    return [position for step in range(len(split)) for piece in pieces(split, step) for position in piece]


def splits_of_the_grid(drop_last: bool) -> Iterator[tuple[Split, int, range]]:
    """Yield the splits of all sizes, from several places on, their batch sizes, and the positions that they take."""
    for num_samples, batch_size, num_processes in GRID:
        for start in {0, 1, num_samples // 2, num_samples}:
            split: Split = whole_batches(num_samples, batch_size, num_processes, drop_last=drop_last, start=start)
            left_out = (num_samples - start) % (batch_size * num_processes) * drop_last
            yield split, batch_size, range(start, num_samples - left_out)
        if num_samples >= num_processes:
            left_out = num_samples % (batch_size * num_processes) * drop_last
            split = EvalSplit(num_samples, batch_size, num_processes, drop_last=drop_last)
            yield split, batch_size, range(num_samples - left_out)


@pytest.mark.parametrize("drop_last", [False, True])
def test_every_sample_is_taken_once_and_in_order_in_full_steps_before_the_rest(drop_last: bool) -> None:
    """In training and evaluation; drop_last leaves out what fills no global batch. No step is empty."""
    for split, batch_size, expected in splits_of_the_grid(drop_last):
        assert positions(split) == list(expected)
        of_steps = [list(map(len, pieces(split, step))) for step in range(len(split))]
        assert [split.size(step) for step in range(len(split))] == list(map(sum, of_steps))
        is_full = [set(sizes) == {batch_size} for sizes in of_steps]
        assert is_full == [step < split.num_full_steps for step in range(len(split))]
        assert all(map(sum, of_steps))


def test_the_remainder_of_training_is_shared_evenly_from_rank_zero_on() -> None:
    """By as many processes as possible; none has a single sample, which batch normalisation refuses, unless it must."""
    for num_samples, batch_size, num_processes in GRID:
        split = whole_batches(num_samples, batch_size, num_processes)
        for step in range(len(split)):
            sizes = [len(piece) for piece in pieces(split, step)]
            assert 1 not in sizes or split.size(step) == 1 or batch_size == 1
        sizes = [len(piece) for piece in pieces(split, len(split) - 1)]
        total, taking = sum(sizes), [size for size in sizes if size > 0]
        assert len(taking) == min(num_processes, total if batch_size == 1 else max(1, total // 2))
        assert sizes == sorted(sizes, reverse=True)
        assert max(taking) - min(taking) <= 1
        assert max(taking) <= max(batch_size, 3 if batch_size == 2 else 0)


def test_every_process_evaluates_in_every_step() -> None:
    """No process ever waits for another; only the last step, and the one that it borrows from, are smaller."""
    for num_samples, batch_size, num_processes in GRID:
        if num_samples >= num_processes:
            split = EvalSplit(num_samples, batch_size, num_processes)
            for step in range(len(split)):
                sizes = [len(piece) for piece in pieces(split, step)]
                assert 1 <= min(sizes) <= max(sizes) <= min(min(sizes) + 1, max(batch_size, 2))
                assert step >= len(split) - 2 or sum(sizes) == batch_size * num_processes
            assert batch_size == 1 or len(split) == -(-num_samples // (batch_size * num_processes))


def test_pieces_are_no_larger_than_each_process_was_told() -> None:
    """Not even one of three samples where two are the most, which a step that is dealt evenly has."""
    for samples, num_processes in itertools.product(range(1, 200), range(2, 9)):
        split = UpdateSplit(3 * samples, samples, 2, num_processes, max_batch_sizes=(2,) * num_processes)
        assert positions(split) == list(range(3 * samples))
        assert max(len(piece) for step in range(len(split)) for piece in pieces(split, step)) <= 2


@pytest.mark.parametrize("drop_last", [False, True])
def test_updates_are_of_as_many_samples_on_any_number_of_processes(drop_last: bool) -> None:
    """In order, each sample once; no process takes more than it was told, and steps are as even as can be."""
    for num_samples, most, num_processes in GRID[::7]:
        for samples, start in itertools.product({1, 7, 20, num_samples}, {0, num_samples // 2}):
            split = UpdateSplit(num_samples, samples, most, num_processes, drop_last=drop_last, start=start)
            counted_from = start if split.steps_per_update == 1 else 0
            end = max(start, num_samples - (num_samples - counted_from) % samples * drop_last)
            assert positions(split) == list(range(start, end))
            for first in range(0, len(split), split.steps_per_update):
                sizes = [split.size(step) for step in range(first, min(first + split.steps_per_update, len(split)))]
                assert sum(sizes) == min(samples, end - start - first // split.steps_per_update * samples)
                assert max(sizes) - min(sizes) <= 1
            for step in range(len(split)):
                lengths = {len(piece) for piece in pieces(split, step)}
                assert max(lengths) <= (3 if most == 2 else most)
                assert step >= split.num_full_steps or lengths == {split.batch_size}


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 200), st.integers(1, 90))
def test_unlike_processes_take_what_they_hold(most: list[int], num_samples: int, samples: int) -> None:
    """In order, each sample once, in as few steps as possible, and only the last processes are left without one."""
    split = UpdateSplit(num_samples, samples, max(most), len(most), max_batch_sizes=tuple(most))
    assert positions(split) == list(range(num_samples))
    assert split.steps_per_update == -(-samples // sum(most))
    for step in range(len(split)):
        lengths = list(map(len, pieces(split, step)))
        assert all(length <= one for length, one in zip(lengths, most, strict=True))
        assert lengths == sorted(lengths, key=lambda length: length == 0)
        for (length, one), (other, more) in itertools.permutations(zip(lengths, most, strict=True), 2):
            assert one >= more or other >= length - 1 or other == 0  # who holds more takes no less
        if sum(lengths) == sum(most):
            assert lengths == most


def test_no_process_has_one_sample_for_batch_norm() -> None:
    """Where those before it have room for two."""
    split = UpdateSplit(7, 7, 4, 3, max_batch_sizes=(4, 2, 3))
    assert [len(piece) for piece in pieces(split, 0)] == [3, 2, 2]
    rest = UpdateSplit(3, 7, 4, 3, max_batch_sizes=(4, 2, 3))
    assert [len(piece) for piece in pieces(rest, 0)] == [3, 0, 0]


@given(st.integers(1, 10**6), st.integers(1, 5000), batch_sizes, st.integers(1, 100), st.integers(0, 1000))
def test_the_steps_before_an_update_and_those_from_it_on_are_all(
    num_samples: int, samples: int, most: int, num_processes: int, updates: int
) -> None:
    """Wherever a run is continued, steps have the numbers that they have in a whole epoch."""
    whole = UpdateSplit(num_samples, samples, most, num_processes)
    rest = UpdateSplit(num_samples, samples, most, num_processes, start=min(updates * samples, num_samples))
    assert rest.steps_before + len(rest) == len(whole)


def micro_batches(split: UpdateSplit) -> list[tuple[range, list[range]]]:
    """Return each update and its micro-batches, put together by their numbers as a trainer does."""
    updates: dict[range, dict[int, range]] = {}
    for step in range(len(split)):
        for rank, piece in enumerate(pieces(split, step)):
            number = number_in_update(split, step, rank)
            assert (number is None) == (len(piece) == 0)
            if number is not None:
                assert number not in updates.setdefault(split.update(step), {})
                updates[split.update(step)][number] = piece
    return [(update, [numbered[number] for number in range(len(numbered))]) for update, numbered in updates.items()]


epochs_of_updates = given(
    num_samples=st.integers(1, 120), samples=st.integers(1, 60), batch_size=st.integers(1, 12), drop_last=st.booleans()
)


@epochs_of_updates
def test_micro_batches_are_the_same_on_any_number_of_processes(
    num_samples: int, samples: int, batch_size: int, drop_last: bool
) -> None:
    """An update is cut by the positions of its samples alone, so each sample is in one micro-batch, the same one."""
    end = num_samples - num_samples % samples * drop_last
    updates = [range(begin, min(begin + samples, end)) for begin in range(0, end, samples)]
    of_one = micro_batches(fixed_batches(num_samples, samples, batch_size, 1, drop_last=drop_last))
    assert [update for update, _ in of_one] == updates
    for update, pieces in of_one:
        assert [position for piece in pieces for position in piece] == list(update)
        assert len(pieces) == -(-len(update) // batch_size)
        assert max(map(len, pieces)) - min(map(len, pieces)) <= 1
    for num_processes in range(1, 8):
        split = fixed_batches(num_samples, samples, batch_size, num_processes, drop_last=drop_last)
        assert micro_batches(split) == of_one


@epochs_of_updates
def test_each_process_computes_a_block_of_micro_batches_from_the_first_step_of_an_update_on(
    num_samples: int, samples: int, batch_size: int, drop_last: bool
) -> None:
    """The blocks follow each other rank after rank, the larger ones first, and an update ends with the largest."""
    for num_processes in range(1, 8):
        split = fixed_batches(num_samples, samples, batch_size, num_processes, drop_last=drop_last)
        ends = [*range(len(split))][split.steps_per_update - 1 :: split.steps_per_update]
        ends += [len(split) - 1] if len(split) % split.steps_per_update else []
        for first, last in itertools.pairwise([-1, *ends]):
            steps = range(first + 1, last + 1)
            assert len(steps) == -(-split.micro_batches(last, 0)[1] // num_processes) <= split.steps_per_update
            blocks = [[number_in_update(split, step, rank) for step in steps] for rank in range(num_processes)]
            computed = [[number for number in block if number is not None] for block in blocks]
            assert [number for block in computed for number in block] == list(range(split.micro_batches(last, 0)[1]))
            assert all(block[: len(own)] == own for block, own in zip(blocks, computed, strict=True))
            lengths = [len(own) for own in computed]
            assert lengths == sorted(lengths, reverse=True)
            assert lengths[0] - lengths[-1] <= 1
            for step in steps:
                own = pieces(split, step)
                assert split.size(step) == sum(map(len, own)) > 0
                assert all(len(piece) <= batch_size for piece in own)
                assert all(update_has(split.update(step), piece) for piece in own)


def update_has(update: range, piece: range) -> bool:
    """Return whether a piece lies within an update, also where it is empty."""
    return update.start <= piece.start <= piece.stop <= update.stop


@epochs_of_updates
def test_full_steps_of_micro_batches_take_consecutive_positions(
    num_samples: int, samples: int, batch_size: int, drop_last: bool
) -> None:
    """So a loader may cut many steps from one tensor; where an update is one full step, on several processes, too."""
    for num_processes in (1, 2, 3, samples // batch_size or 1):
        split = fixed_batches(num_samples, samples, batch_size, num_processes, drop_last=drop_last)
        full = [position for step in range(split.num_full_steps) for piece in pieces(split, step) for position in piece]
        assert full == list(range(split.num_full_steps * batch_size * num_processes))
        if samples == batch_size * num_processes or (num_processes == 1 and samples % batch_size == 0):
            assert split.num_full_steps == num_samples // samples * split.steps_per_update


@given(st.integers(1, 120), st.integers(1, 60), st.integers(1, 12), st.integers(1, 7), st.integers(0, 20))
def test_another_number_of_processes_continues_with_the_next_update(
    num_samples: int, samples: int, batch_size: int, num_processes: int, updates: int
) -> None:
    """What is left of an epoch after some updates is the same on any number, and steps keep their numbers."""
    start = min(updates * samples, num_samples)
    for drop_last in (False, True):
        whole = fixed_batches(num_samples, samples, batch_size, 1, drop_last=drop_last)
        rest = fixed_batches(num_samples, samples, batch_size, num_processes, drop_last=drop_last, start=start)
        assert micro_batches(rest) == [one for one in micro_batches(whole) if one[0].start >= start]
    rest = fixed_batches(num_samples, samples, batch_size, num_processes, start=start)
    assert rest.steps_before + len(rest) == len(fixed_batches(num_samples, samples, batch_size, num_processes))


@given(num_samples=large, batch_size=batch_sizes, num_processes=processes, data=st.data())
def test_any_step_of_a_huge_epoch_joins_its_neighbours(
    num_samples: int, batch_size: int, num_processes: int, data: st.DataObject
) -> None:
    """Steps and ranks that follow each other take positions that follow each other, at any size."""
    splits: list[Split] = [
        whole_batches(num_samples, batch_size, num_processes, start=data.draw(st.integers(0, num_samples - 1)))
    ]
    if num_samples >= num_processes:
        splits.append(EvalSplit(num_samples, batch_size, num_processes))
    for split in splits:
        num_steps = len(split)
        step = data.draw(st.integers(max(0, num_steps - 3), num_steps - 1))
        rank = data.draw(st.integers(0, num_processes - 1))
        last_rank = rank == num_processes - 1
        if not last_rank:
            assert split.piece(step, rank).stop == split.piece(step, rank + 1).start
        elif step + 1 < num_steps:
            assert split.piece(step, rank).stop == split.piece(step + 1, 0).start
        else:
            assert split.piece(step, rank).stop == num_samples


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(kind, 10, *sizes), f"{name} must be a whole number >= 1, got 0")
        for kind in (whole_batches, EvalSplit)
        for name, sizes in (("batch_size", (0, 1)), ("num_processes", (1, 0)))
    ]
    + [
        (
            partial(
                fixed_batches, 20, **{"samples_per_update": 8, "max_batch_size": 4, "num_processes": 2} | {name: 0}
            ),
            message,
        )
        for name, message in (
            ("samples_per_update", "samples_per_update must be a whole number >= 1, got 0"),
            ("max_batch_size", "batch_size must be a whole number >= 1, got 0"),
            ("num_processes", "num_processes must be a whole number >= 1, got 0"),
        )
    ]
    + [
        (partial(whole_batches, 10, 2, 1, start=-1), "start=-1 in an epoch of 10 samples"),
        (partial(whole_batches, 10, 2, 1, start=11), "start=11 in an epoch of 10 samples"),
        (partial(whole_batches, -3, 2, 1), "num_samples must be a whole number >= 0, got -3"),
        (partial(EvalSplit, 3, 8, 4), "3 samples for 4 processes.*fewer processes"),
        (partial(UpdateSplit, 7, 7, 4, 2, max_batch_sizes=(3,)), r"2 processes, and max_batch_sizes=\(3,\)"),
        (
            partial(fixed_batches, 20, 8, 4, 2, start=12),
            "start=12, with updates of 8 samples.*samples_per_update as it",
        ),
        (partial(fixed_batches, 20, 8, 4, 2, start=24), "start=24 in an epoch of 20 samples"),
    ],
)
def test_numbers_that_describe_no_split_are_refused(make: Callable[[], Split], message: str) -> None:
    """The error names the number and what to do; where batches are fixed, an epoch begins between two updates."""
    with pytest.raises(DataError, match=message):
        make()


def test_an_epoch_of_fixed_batches_may_be_over() -> None:
    """Its end is between two updates."""
    assert len(fixed_batches(20, 8, 4, 2, start=20)) == 0


@pytest.mark.parametrize("split", [whole_batches(10, 2, 2), EvalSplit(10, 2, 2), fixed_batches(10, 4, 2, 2)])
def test_steps_and_ranks_that_do_not_exist_are_refused(split: Split) -> None:
    """Asking for them is an error, not an empty piece."""
    with pytest.raises(IndexError, match="step 3"):
        split.piece(3, 0)
    with pytest.raises(IndexError, match="step -1"):
        split.size(-1)
    with pytest.raises(IndexError, match="rank 2"):
        split.piece(0, 2)


def test_batches_of_an_order_are_dealt_in_turn() -> None:
    """Each step has the next batch of the order for each process; in the last one the first ranks have the rest."""
    ends = [3, 4, 9, 11, 12]
    for processes in range(1, 7):
        split = BatchSplit(torch.tensor(ends), processes)
        pieces = [split.piece(step, rank) for step in range(len(split)) for rank in range(processes)]
        assert [piece.stop for piece in pieces[:5]] == ends
        assert [index for piece in pieces for index in piece] == list(range(12))
        assert [split.size(step) for step in range(len(split))] == [
            sum(map(len, pieces[step * processes : (step + 1) * processes])) for step in range(len(split))
        ]


def test_another_number_of_processes_goes_on_at_the_same_batch() -> None:
    """A split that begins where a batch ends has the rest of them, and refuses to begin within one."""
    ends = torch.tensor([3, 4, 9, 11, 12])
    for done, start in enumerate((0, 3, 4, 9, 11, 12)):
        split = BatchSplit(ends, 2, start=start)
        assert len(split) == (5 - done + 1) // 2
        assert sum(split.size(step) for step in range(len(split))) == 12 - start
    for start in (-1, 1, 10, 13):
        with pytest.raises(DataError, match=f"start={start}"):
            BatchSplit(ends, 2, start=start)
