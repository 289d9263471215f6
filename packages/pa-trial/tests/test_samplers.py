"""The samplers of trials: what each yields, how long each is, and how they compose."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, SequentialSampler

from pa_trial import samplers

LENGTHS = st.integers(0, 20)
SHARES = st.integers(1, 5).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1)))


@given(LENGTHS, st.integers(0, 60))
def test_repeated_items_follow_each_other_without_end(length: int, taken: int) -> None:
    """Item number i of the repeated sequence is item i modulo the length, whose length stays that of one round."""
    sampler = samplers.RepeatSampler(range(length))
    expected = [number % length for number in range(taken)] if length else []
    assert list(islice(sampler, taken)) == expected
    assert len(sampler) == length


@given(LENGTHS, SHARES)
def test_shares_are_disjoint_and_complete(length: int, share: tuple[int, int]) -> None:
    """Process r of R gets items r, r + R, ..., and its sampler has exactly that length."""
    size, rank = share
    sampler = samplers.DistributedSampler(range(length), num_workers=size, rank=rank)
    assert list(sampler) == list(range(length))[rank::size]
    assert len(sampler) == len(list(sampler))


@given(LENGTHS, st.integers(0, 30))
def test_skipping_leaves_out_the_first_items_of_each_iteration(length: int, skip: int) -> None:
    """Each iteration lacks its first items, all of them if there are not so many; the length is what it was."""
    sampler = samplers.SkipSampler(range(length), skip)
    assert [list(sampler), list(sampler)] == [list(range(length))[skip:]] * 2
    assert len(sampler) == length


@given(st.integers(1, 20), st.integers(1, 6), SHARES, st.integers(0, 15))
def test_batches_are_repeated_then_shared_then_skipped(
    num_samples: int, batch_size: int, share: tuple[int, int], skip: int
) -> None:
    """Batch n of a process is batch ``(skip + n) * R + r`` of the repeated sequence of batches."""
    size, rank = share
    batches = list(BatchSampler(range(num_samples), batch_size, drop_last=False))
    composed = samplers.SkipBatchSampler(
        samplers.DistributedBatchSampler(samplers.RepeatBatchSampler(batches), size, rank), skip
    )
    expected = [batches[((skip + number) * size + rank) % len(batches)] for number in range(9)]
    assert list(islice(composed, 9)) == expected
    assert len(composed) == len(batches[rank::size])
    assert list(samplers.RepeatBatchSampler([])) == []


@pytest.mark.parametrize("kind", [samplers.ReproducibleShuffleSampler, samplers.ReproducibleShuffleBatchSampler])
def test_a_reproducible_shuffle_is_a_function_of_its_seed(
    kind: type[samplers.ReproducibleShuffleSampler[list[int]] | samplers.ReproducibleShuffleBatchSampler],
) -> None:
    """Two of the same seed agree in each iteration, another seed differs, and each iteration has a new order."""
    items = [[number] for number in range(50)]
    first, again, other = kind(items, 7), kind(items, 7), kind(items, 8)
    orders = [list(first), list(first)]
    assert orders == [list(again), list(again)]
    assert orders[0] != orders[1]
    assert list(other) not in orders
    assert sorted(orders[0]) == items
    assert len(first) == 50


def test_a_shuffle_is_that_of_numpy() -> None:
    """The order is the one that a ``RandomState`` of the seed gives the list of indices, as in Determined."""
    assert list(samplers.ReproducibleShuffleSampler(range(8), seed=5)) == [7, 2, 4, 1, 0, 5, 6, 3]


@pytest.mark.parametrize(("size", "rank"), [(2, 2), (2, -1), (0, 0)])
def test_a_share_that_there_is_not_is_refused(size: int, rank: int) -> None:
    """The batch sampler checks rank and number of processes, with a ValueError that names both."""
    with pytest.raises(ValueError, match=f"num_workers={size}, rank={rank}"):
        samplers.DistributedBatchSampler([[0]], num_workers=size, rank=rank)


def test_a_wrapped_batch_sampler_keeps_its_attributes() -> None:
    """Code that looks at the batch size of a loader's batch sampler finds it behind each adaptor."""
    inner = BatchSampler(SequentialSampler(range(5)), 2, drop_last=True)
    wrapped = samplers.SkipBatchSampler(samplers.RepeatBatchSampler(inner), 1)
    assert (wrapped.batch_size, wrapped.drop_last, wrapped.sampler) == (2, True, inner.sampler)
    assert isinstance(wrapped, BatchSampler)


def test_a_shuffle_that_is_repeated_has_another_order_in_each_epoch() -> None:
    """Shuffle, repeat, share out, batch, skip: in the order in which the documentation composes them."""
    shuffled, expected = (samplers.ReproducibleShuffleSampler(range(8), seed=7) for _ in range(2))
    shard = samplers.DistributedSampler(samplers.RepeatSampler(shuffled), num_workers=2, rank=1)
    skipping = samplers.SkipBatchSampler(BatchSampler(shard, batch_size=4, drop_last=False), 1)
    assert next(iter(skipping)) == [*expected, *expected][1::2][4:]
