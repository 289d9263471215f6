"""Short texts of samples, by which the data of two processes are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from pa_data.digests import digest_samples, digests_of_leaves
from tests.support.drawing import Drawing


@dataclass
class Named:
    """A sample with a path."""

    path: str
    pixels: Tensor


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.arange(5), torch.arange(5).flip(0)),
        (torch.linspace(-1, 1, 9), torch.linspace(-1, 1, 9).flip(0)),
        (numpy.arange(4), numpy.arange(4) + 1),
        ({"label": 3}, {"label": 4}),
        ((0.5, "cat"), (0.5, "dog")),
        (Named("/a/x.png", torch.zeros(2)), Named("/a/y.png", torch.zeros(2))),
    ],
)
def test_other_samples_have_other_digests(one: Any, other: Any) -> None:
    """In each kind of value that samples are made of."""
    assert digests_of_leaves(one) != digests_of_leaves(other)
    assert digests_of_leaves(one) == digests_of_leaves(one) != {}


def test_machines_that_round_differently_have_the_same_digests() -> None:
    """And so have those that keep their files in different folders."""
    pixels = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(0))
    one, other = Named("/local/0/x.png", pixels), Named("/local/1/x.png", pixels * (1 + 1e-7))
    assert digests_of_leaves(one) == digests_of_leaves(other)
    assert digests_of_leaves(object()) == {}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_a_sample_draws_is_the_same_each_time(num_workers: int) -> None:
    """From the global generators, whose states stay as they are; an index that raises an error has no digest."""
    loader = DataLoader(Drawing(4), num_workers=num_workers)
    before = torch.random.get_rng_state()
    first = digest_samples(loader, [0, 3])
    assert first == digest_samples(loader, [0, 3])
    assert first[0] != first[1]
    assert first[0] != {}
    assert torch.equal(before, torch.random.get_rng_state())
    assert digest_samples(DataLoader(TensorDataset(torch.zeros(1)), num_workers=num_workers), [5]) == [{}]
