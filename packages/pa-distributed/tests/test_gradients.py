"""Gradients of two ranks are averaged bucket by bucket: the means are those that one process computes."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from pa_distributed.gradients import GradientExchange
from tests.support.branches import BUCKETS, Branches

pytestmark = pytest.mark.runs_on("two_ranks")

ALL = ("first", "image", "exact", "words")


def inputs_of(rank: int) -> Tensor:
    """What a rank has, which each of them can draw."""
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(rank))


def exchange_of(model: Branches, bucket_bytes: int, dtype: torch.dtype | None = None) -> GradientExchange:
    """The exchange of all its gradients, with two numbers of each rank."""
    return GradientExchange([model], 2, bucket_bytes=bucket_bytes, dtype=dtype)


def assert_means(model: Branches, passes: dict[int, list[tuple[str, ...]]], tolerance: float = 0.0) -> None:
    """The gradients are the means over the ranks of what their passes add up to."""
    expected = Branches()
    for rank, of_rank in passes.items():
        for parts in of_rank:
            torch.autograd.backward(expected.loss(inputs_of(rank), parts) / len(passes))
    for (name, one), other in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None and other.grad is not None:
            own, wanted = one.grad.to_dense(), other.grad.to_dense()
            torch.testing.assert_close(own, wanted, rtol=tolerance or 1e-6, atol=tolerance or 1e-7)


@pytest.mark.parametrize("bucket_bytes", BUCKETS)
@pytest.mark.parametrize("num_passes", [1, 2])
def test_the_means_over_the_ranks_and_the_sums_of_their_numbers(bucket_bytes: int, num_passes: int) -> None:
    """During a backward pass, and again where a second one adds to gradients that are on their way."""
    model = Branches()
    exchange, rank = exchange_of(model, bucket_bytes), dist.get_rank()
    for update in range(3):
        exchange.open()
        for _ in range(num_passes):
            exchange.open()
            torch.autograd.backward(model.loss(inputs_of(rank), ALL))
        assert exchange.finish([1.0, rank + update]).tolist() == [2.0, 2 * update + 1]
        exchange.end_update()
        assert_means(model, {0: [ALL] * num_passes, 1: [ALL] * num_passes})
        model.zero_grad()


@pytest.mark.parametrize("bucket_bytes", BUCKETS)
@pytest.mark.parametrize("parts", [(), ("first",), ("image", "words")])
def test_ranks_may_use_different_layers(bucket_bytes: int, parts: tuple[str, ...]) -> None:
    """A rank without a sample, or with another path through the model; what no rank has used has no gradient."""
    model = Branches()
    exchange, rank = exchange_of(model, bucket_bytes), dist.get_rank()
    mine = ("image", "exact") if rank == 0 else parts
    exchange.open(overlaps=False)
    if mine:
        torch.autograd.backward(model.loss(inputs_of(rank), mine))
    assert exchange.finish([0.0, 5.0]).tolist() == [0.0, 10.0]
    assert_means(model, {0: [("image", "exact")], 1: [parts] if parts else []})


def test_gradients_may_be_sent_in_half_precision() -> None:
    """They are those of float32 up to its rounding; numbers are exact all the same."""
    model = Branches()
    exchange, rank = exchange_of(model, 1 << 20, dtype=torch.bfloat16), dist.get_rank()
    exchange.open()
    torch.autograd.backward(model.loss(inputs_of(rank), ALL))
    assert exchange.finish([16777215.0, 0.0]).tolist() == [33554430.0, 0.0]
    assert_means(model, {0: [ALL], 1: [ALL]}, tolerance=2e-2)


def test_a_wrong_number_of_numbers_is_refused() -> None:
    """The error says how many are expected, before anything is sent."""
    exchange = exchange_of(Branches(), 1)
    for values in ([], [1.0], [1.0, 2.0, 3.0]):
        with pytest.raises(ValueError, match=rf"num_values=2 numbers, got {len(values)}\."):
            exchange.finish(values)
    assert exchange.finish([1.0, 2.0]).tolist() == [2.0, 4.0]


def test_a_closed_exchange_leaves_the_parameters_alone() -> None:
    """Copies of the model can be made and trained."""
    model = Branches()
    exchange = exchange_of(model, 1)
    exchange.open()
    exchange.finish([0.0, 0.0])
    exchange.close()
    torch.autograd.backward(copy.deepcopy(model).loss(inputs_of(dist.get_rank()), ("first",)))


def test_gradients_that_a_layer_had_when_it_was_frozen_are_averaged_with_the_next_update() -> None:
    """Also where only one rank has them; later the layer takes part no more, until it is trained again."""
    model = Branches()
    exchange, rank = exchange_of(model, 200), dist.get_rank()
    for update, is_trained in enumerate([True, False, False, True]):
        if update < 2 and rank == 0:  # frozen after it, in the second update
            torch.autograd.backward(model.loss(inputs_of(rank), ("first",)))
        model.first.requires_grad_(is_trained)
        exchange.open()
        torch.autograd.backward(model.loss(inputs_of(rank), ("image",)))
        exchange.finish([0.0, 0.0])
        exchange.end_update()
        assert_means(model, {0: [("image",), ("first",)] if update < 2 else [("image",)], 1: [("image",)]})
        assert (id(model.first.weight) in map(id, exchange.parameters)) == (update != 2)
        model.zero_grad()
