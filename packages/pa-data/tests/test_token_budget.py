"""Token budgets: what is in a batch, and that it is the same for every division of the work."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from pa_data import KeyedDataLoader
from pa_data.errors import ConfigurationError, ExplainedError
from pa_data.orders import Order, TokenBudget
from tests.support.drawing import Indices

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


def test_the_identity_is_that_of_the_lengths_and_the_budget() -> None:
    """Orders that were given the same numbers in another form are the same; another budget makes another one."""
    assert (
        TokenBudget([1, 2, 3], 8).fingerprint == TokenBudget(torch.tensor([1, 2, 3], dtype=torch.int16), 8).fingerprint
    )
    others = [TokenBudget([1, 2, 4], 8), TokenBudget([1, 2, 3], 9), TokenBudget([1, 2, 3], 8, max_samples=2)]
    assert len({order.fingerprint for order in [TokenBudget([1, 2, 3], 8), *others]}) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": [3, 90, 80], "max_tokens": 64}, "sample 1 with 90 tokens.*max_tokens=90"),
        ({"lengths": [3, -1], "max_tokens": 64}, r"lengths\[1\]=-1"),
        ({"lengths": [3.5], "max_tokens": 64}, "torch.float32"),
        ({"lengths": [], "max_tokens": 64}, "0 lengths"),
        ({"lengths": ["abc"], "max_tokens": 64}, "list"),
        ({"lengths": [3], "max_tokens": 0}, "max_tokens must be .* got 0"),
        ({"lengths": [3], "max_tokens": 64.0}, "max_tokens must be .* got 64.0"),
        ({"lengths": [3], "max_tokens": 64, "max_samples": 0}, "max_samples must be .* got 0"),
        ({"lengths": [3], "max_tokens": 64, "pad_to_multiple_of": 0}, "pad_to_multiple_of must be .* got 0"),
        ({"lengths": [3], "max_tokens": 64, "bucket_growth": 0.9}, "bucket_growth must be .* got 0.9"),
    ],
)
def test_what_cannot_work_is_explained(arguments: dict[str, Any], message: str) -> None:
    """Bad lengths and limits are refused when the order is made, a sample that is too long with its number."""
    with pytest.raises(ExplainedError, match=f"(?s){message}"):
        TokenBudget(**arguments)


def test_lengths_of_another_dataset_are_refused() -> None:
    """There is a length for each sample of the dataset."""
    with pytest.raises(ConfigurationError, match="3 lengths and a dataset of 4 samples"):
        KeyedDataLoader(TensorDataset(torch.arange(4)), order=TokenBudget([1, 2, 3], 8))


def test_a_position_within_a_batch_is_refused() -> None:
    """Nothing is trained on twice or never because a position was counted in another order."""
    with pytest.raises(ConfigurationError, match="start=1, within batch 0 of"):
        KeyedDataLoader(Indices(1000), order=TokenBudget(LENGTHS, max_tokens=1024)).start_epoch(0, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 8}, "batch_size=8, and order=TokenBudget"),
        ({"drop_last": True}, "leave out drop_last=True with order=TokenBudget"),
        ({"split": "eval"}, 'split="eval", and order=TokenBudget'),
    ],
)
def test_options_without_effect_are_refused(options: dict[str, Any], message: str) -> None:
    """What the order decides cannot be asked of the loader too."""
    order = TokenBudget([1, 2, 3, 4], 8)
    with pytest.raises(ConfigurationError, match=message):
        KeyedDataLoader(TensorDataset(torch.arange(4)), order=order, **options)
    assert KeyedDataLoader(TensorDataset(torch.arange(4)), order=order, batch_size=None).batch_size is None


def test_ends_of_batches_that_nobody_would_ask_for_are_refused() -> None:
    """An order whose epochs say where batches end has to say that it makes them, or they would be cut elsewhere."""

    class Forgetful(TokenBudget):
        name = "forgetful-v1"
        makes_batches = False

    with pytest.raises(ConfigurationError, match="makes_batches = True"):
        KeyedDataLoader(TensorDataset(torch.arange(3)), 2, order=Forgetful([1, 2, 3], max_tokens=6))
