"""The order of samples in files."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pa_data.errors import ConfigurationError
from pa_data.files import ShardOrder


@st.composite
def orders(draw: st.DrawFn) -> ShardOrder:
    """Any order of a few shards."""
    counts = draw(st.lists(st.integers(0, 40), min_size=1, max_size=7))
    lanes = draw(st.integers(1, 5))
    window, block = draw(st.integers(lanes, 60)), draw(st.integers(1, 9))
    return ShardOrder(tuple(map(str, range(len(counts)))), tuple(counts), window, lanes, block)


@settings(max_examples=50)
@given(order=orders(), seed=st.integers(0, 99), part=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_each_sample_comes_once_and_any_part_is_that_of_the_whole(
    order: ShardOrder, seed: int, part: tuple[float, float]
) -> None:
    """An epoch visits each sample once, and a process that asks for a part gets what is there in the whole epoch."""
    total = sum(order.counts)
    whole = order.epoch_order(total, seed=seed, epoch=1).indices(0, total)
    assert sorted(whole.tolist()) == list(range(total))
    start, stop = sorted(int(share * total) for share in part)
    assert torch.equal(order.epoch_order(total, seed=seed, epoch=1).indices(start, stop), whole[start:stop])


def test_a_window_reaches_over_few_shards() -> None:
    """At any time only those files are read that the window reaches over, and samples within it are shuffled."""
    order = ShardOrder(tuple("abcdefgh"), (100,) * 8, window=50)
    shards = order.epoch_order(800, seed=3, epoch=0).indices(0, 800).view(16, 50) // 100
    assert [len(set(window.tolist())) for window in shards] == [1] * 16
    assert len(set(shards[::2, 0].tolist())) == 8
    first, second = (order.epoch_order(800, seed=3, epoch=epoch).indices(0, 800) for epoch in (0, 1))
    assert (first.diff() == 1).float().mean() < 0.1
    assert not torch.equal(first // 100, second // 100)


def test_each_worker_has_a_lane_to_itself() -> None:
    """With as many lanes as processes times workers, and blocks of a batch, each worker reads files of its own."""
    order = ShardOrder(tuple("abcdefgh"), (320,) * 8, window=64, lanes=4, block=8)
    epoch = order.epoch_order(2560, seed=0, epoch=0).indices(0, 2560) // 320
    batches = epoch.view(80, 2, 2, 8)  # steps, of which every other one is the second worker's; processes; samples
    of_workers = [set(batches[:, worker, process].flatten().tolist()) for worker in (0, 1) for process in (0, 1)]
    assert [len(shards) for shards in of_workers] == [2] * 4
    assert set().union(*of_workers) == set(range(8))


def test_the_start_of_an_epoch_and_a_seek_take_no_time() -> None:
    """In a hundred million samples of a thousand files, a run begins or resumes anywhere within ten milliseconds."""
    order = ShardOrder(tuple(map(str, range(1000))), (100_000,) * 1000, lanes=8)
    taken: list[float] = []
    for position in (0, 12_345_678, 99_990_000):
        begin = time.perf_counter()
        order.epoch_order(100_000_000, seed=1, epoch=7).indices(position, position + 64)
        taken.append(time.perf_counter() - begin)
    assert min(taken) < 0.01


def test_the_identity_says_which_samples_come_when() -> None:
    """Other files, counts or windows are another order; what has no influence on it is no part of it."""
    order = ShardOrder(("a", "b"), (3, 4), window=10)
    assert order.fingerprint == ShardOrder(("a", "b"), (3, 4), window=10, block=8).fingerprint
    others = [
        ShardOrder(("a", "c"), (3, 4), window=10),
        ShardOrder(("a", "b"), (4, 3), window=10),
        ShardOrder(("a", "b"), (3, 4), window=11),
        ShardOrder(("a", "b"), (3, 4), window=10, lanes=2),
        ShardOrder(("a", "b"), (3, 4), window=10, lanes=2, block=8),
    ]
    assert len({order.fingerprint, *(other.fingerprint for other in others)}) == 6


@pytest.mark.parametrize(
    ("numbers", "given"),
    [
        ({"window": 0}, "window must be a whole number >= 1, got 0"),
        ({"lanes": 0}, "lanes must be a whole number >= 1, got 0"),
        ({"block": -1}, "block must be a whole number >= 1, got -1"),
        ({"window": 2, "lanes": 3}, "window must be >= lanes=3, which share it, got 2"),
    ],
)
def test_numbers_that_describe_no_order_are_refused(numbers: dict[str, int], given: str) -> None:
    """A window, lanes or a block of nothing are errors that say which."""
    with pytest.raises(ConfigurationError, match=given):
        ShardOrder(("a",), (3,), **numbers)


def test_it_is_the_order_of_its_files_only() -> None:
    """The order of files with another dataset, such as a part of them, is refused."""
    with pytest.raises(ConfigurationError, match=r"6 samples.*7 samples"):
        ShardOrder(("a", "b"), (3, 4)).epoch_order(6, seed=0, epoch=0)
