"""Curriculum: the samples of each epoch are those that a function chooses for it."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from pa_data import KeyedDataLoader
from pa_data.errors import ArgumentTypeError, ConfigurationError, EmptyDatasetError, ExplainedError
from pa_data.orders import Curriculum
from tests.support.drawing import Drawing

DIFFICULTY = torch.arange(10.0).flip(0)


def easiest(epoch: int) -> Tensor:
    """Three samples in the first epoch, and two more in each that follows."""
    return DIFFICULTY.lt(3 + 2 * epoch)


def visited(order: Curriculum, epoch: int, num_samples: int = 10, seed: int = 0) -> list[int]:
    """The samples of an epoch."""
    whole = order.epoch_order(num_samples, seed=seed, epoch=epoch)
    return [int(index) for index in whole.indices(0, whole.num_samples)]


def test_each_epoch_visits_what_is_chosen_for_it() -> None:
    """A mask or indices say which samples an epoch visits; they are shuffled unless that is switched off."""
    by_mask = Curriculum(easiest)
    by_index = Curriculum(lambda epoch: [9, 8, 7, 6, 5, 4, 3, 2, 1, 0][: 3 + 2 * epoch], shuffle=False)
    for epoch in range(3):
        assert sorted(visited(by_mask, epoch)) == list(range(7 - 2 * epoch, 10))
        assert visited(by_index, epoch) == list(range(9, 6 - 2 * epoch, -1))
    assert visited(by_mask, 2) != visited(by_mask, 2, seed=1)
    assert visited(Curriculum(lambda epoch: torch.ones(10, dtype=torch.bool)), 3) == visited(
        Curriculum(lambda epoch: range(10)), 3
    )


def test_a_loader_has_as_many_batches_as_the_epoch_has_samples_for() -> None:
    """Epochs differ in length, and begin at any of their positions."""
    loader = KeyedDataLoader(Drawing(10), batch_size=2, order=Curriculum(easiest), num_workers=1)
    for epoch, length in enumerate([2, 3, 4]):
        loader.start_epoch(epoch)
        assert len(loader) == length
        whole = torch.cat(list(loader))
        assert sorted(whole[:, 0].tolist()) == list(range(7 - 2 * epoch, 10))
        loader.start_epoch(epoch, 2)
        assert torch.equal(torch.cat(list(loader)), whole[2:])


def test_a_random_choice_follows_from_seed_and_epoch() -> None:
    """What the function draws is the same on each call, and the generators of the process are as they were."""
    order = Curriculum(
        lambda epoch: numpy.random.permutation(10)[:5].tolist() + torch.randperm(10)[:1].tolist(), shuffle=False
    )
    before = torch.get_rng_state(), repr(numpy.random.get_state())
    first = visited(order, 0)
    assert visited(order, 0) == first
    assert len({tuple(visited(order, epoch, seed=seed)) for epoch in range(3) for seed in range(3)}) == 9
    assert torch.equal(torch.get_rng_state(), before[0])
    assert repr(numpy.random.get_state()) == before[1]


class Limit:
    """A function with a setting."""

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def __call__(self, epoch: int) -> Tensor:
        """Choose as `limit_to`."""
        return limit_to(self.limit, epoch)


def limit_to(limit: float, epoch: int) -> Tensor:
    """All samples in the first epoch, then those below a limit."""
    return DIFFICULTY.lt(limit if epoch else 100)


def test_its_identity_is_the_name_of_the_function_and_its_first_choice() -> None:
    """A run is not resumed with another function, with other settings of an object or a partial, or with other data."""
    orders = [
        Curriculum(easiest),
        Curriculum(easiest, shuffle=False),
        Curriculum(lambda epoch: range(3 + 2 * epoch)),
        Curriculum(lambda epoch: range(4 + 2 * epoch)),
        Curriculum(Limit(3)),
        Curriculum(Limit(4)),
        Curriculum(partial(limit_to, 3)),
        Curriculum(partial(limit_to, 4)),
    ]
    assert len({order.fingerprint for order in orders}) == 8
    assert Curriculum(easiest).fingerprint == orders[0].fingerprint
    assert Curriculum(Limit(3)).fingerprint == orders[4].fingerprint


@pytest.mark.parametrize(
    ("chosen", "kind", "named"),
    [
        ([True] * 9, ConfigurationError, r"9 elements of choose\(2\) and a dataset of 10 samples"),
        ([0, 10], ConfigurationError, r"10 at position 1(.|\n)*choose\(2\)"),
        ([-1], ConfigurationError, r"-1 at position 0"),
        ([0.5, 1.0], ArgumentTypeError, r"float32 from choose\(2\)"),
        ([], EmptyDatasetError, r"choose\(2\) returned none"),
        ([False] * 10, EmptyDatasetError, r"choose\(2\) returned none"),
        (None, ArgumentTypeError, r"choose\(2\) of type NoneType(.|\n)*Return indices from choose"),
        ({1, 2}, ArgumentTypeError, r"choose\(2\) of type set(.|\n)*Return indices from choose"),
        (iter([1]), ArgumentTypeError, r"choose\(2\) of type list_iterator(.|\n)*Return indices from choose"),
        ([[1, 2], [3, 4]], ArgumentTypeError, r"choose\(2\) of shape \(2, 2\)(.|\n)*Return indices from choose"),
    ],
)
def test_what_is_no_choice_is_refused(chosen: Any, kind: type[ExplainedError], named: str) -> None:
    """The epoch and what was chosen for it are named, before anything is loaded."""
    with pytest.raises(kind, match=named):
        Curriculum(lambda epoch: chosen).epoch_order(10, seed=0, epoch=2)


def test_what_is_no_function_is_refused() -> None:
    """A list of epochs is not called."""
    with pytest.raises(ArgumentTypeError, match="choose of type list"):
        Curriculum([[0, 1], [2, 3]])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # the mistake
