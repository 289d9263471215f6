"""Groups of samples of like length, in a random order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pa_data.errors import ExplainedError
from pa_data.orders import LengthGrouped, Shuffled

NUMBER = 3300
LENGTHS = torch.randint(1, 500, (NUMBER,), generator=torch.Generator().manual_seed(0))


def indices(order: LengthGrouped | Shuffled, *, seed: int = 3, epoch: int = 0) -> Tensor:
    """The samples of an epoch."""
    return order.epoch_order(NUMBER, seed=seed, epoch=epoch).indices(0, NUMBER)


def padding(samples: Tensor, batch_size: int) -> float:
    """Which part of the padded batches of an epoch is padding."""
    batches = [LENGTHS[batch] for batch in torch.split(samples, batch_size)]
    return 1 - int(LENGTHS.sum()) / sum(len(batch) * int(batch.max()) for batch in batches)


def test_each_sample_comes_once() -> None:
    """Each epoch and each seed has every sample once, in another order."""
    order = LengthGrouped(LENGTHS, group_size=32, window=640)
    epochs = [indices(order), indices(order, epoch=1), indices(order, seed=4)]
    assert all(sorted(one.tolist()) == list(range(NUMBER)) for one in epochs)
    assert len({tuple(one.tolist()) for one in epochs}) == 3


def test_little_of_a_batch_is_padding() -> None:
    """Batches of a group, or of a part of it, are padded far less than those of a shuffled epoch."""
    order = LengthGrouped(LENGTHS, group_size=32)
    assert padding(indices(Shuffled()), 32) > 0.4
    assert padding(indices(order), 32) < 0.05
    assert padding(indices(order), 8) < 0.05


def test_groups_come_in_a_random_order() -> None:
    """Neither in a window nor in the epoch do long samples come before or after short ones."""
    order = LengthGrouped(LENGTHS, group_size=32, window=640)
    means = LENGTHS[indices(order)[:3200]].double().view(100, 32).mean(1)
    later = torch.arange(100, dtype=torch.float64)
    assert abs(torch.corrcoef(torch.stack([means, later]))[0, 1]) < 0.2
    within = later.remainder(20)
    assert abs(torch.corrcoef(torch.stack([means, within]))[0, 1]) < 0.2


def test_groups_begin_where_batches_do() -> None:
    """The group that is not full comes at the end of the epoch."""
    samples = indices(LengthGrouped(LENGTHS, group_size=32, window=640))
    lengths = LENGTHS[samples]
    assert all(torch.equal(group, group.sort().values) for group in torch.split(lengths, 32))
    assert NUMBER % 32 == len(torch.split(lengths, 32)[-1]) == 4


def test_the_identity_is_that_of_lengths_and_groups() -> None:
    """The default window is that of 50 groups; other lengths, groups or windows make another order."""
    assert (
        LengthGrouped([1, 2], group_size=4).fingerprint == LengthGrouped([1, 2], group_size=4, window=200).fingerprint
    )
    orders = [LengthGrouped([1, 2], group_size=4, window=8), LengthGrouped([2, 1], group_size=4, window=8)]
    orders += [LengthGrouped([1, 2], group_size=8, window=8), LengthGrouped([1, 2], group_size=4, window=12)]
    assert len({order.fingerprint for order in orders}) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": [1.5], "group_size": 4}, "torch.float32"),
        ({"lengths": [1, -5], "group_size": 4}, r"lengths\[1\]=-5"),
        ({"lengths": [1], "group_size": 0}, "group_size must be .* got 0"),
        ({"lengths": [1], "group_size": 1}, "group_size must be a whole number >= 2"),
        ({"lengths": [1], "group_size": 4, "window": 0}, "window must be .* got 0"),
        ({"lengths": [1], "group_size": 4, "window": 10}, "window must be a multiple of group_size=4, got 10"),
    ],
)
def test_what_cannot_work_is_explained(arguments: dict[str, Any], message: str) -> None:
    """Bad lengths, groups and windows are refused when the order is made."""
    with pytest.raises(ExplainedError, match=message):
        LengthGrouped(**arguments)
