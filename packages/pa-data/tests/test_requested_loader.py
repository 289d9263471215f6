"""The loader whose batches are each a function of their request."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset
from typing_extensions import override

from pa_data import BatchRequest, RequestedDataLoader
from pa_data.rng import mix


class Endless:
    """Requests without end, of a sample by name and a sample that comes twice; an epoch has two of them."""

    indices: tuple[Any, ...] = ("a", "bb", "bb")

    def __len__(self) -> int:
        return 2

    def requests(self) -> Iterator[BatchRequest]:
        """Keys by number, and draws by the place in the batch."""
        number = 0
        while True:
            yield mix(number), list(self.indices), range(len(self.indices))
            number += 1

    def __iter__(self) -> Iterator[list[Any]]:
        return (list(indices) for _, indices, _ in self.requests())


class Positions(Endless):
    """Of tensors, the last one counted from the end."""

    indices = (3, 0, -1)


class Names(Dataset[Tensor]):
    """Samples by name, with a random number each."""

    @override
    def __getitem__(self, index: str) -> Tensor:
        return torch.tensor([len(index), random.random()], dtype=torch.float64)


def batches(loader: RequestedDataLoader[Any], number: int) -> list[Any]:
    """The first batches, as nested lists."""
    return [batch.tolist() for batch in islice(loader, number)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_depends_on_its_request_alone(workers: int) -> None:
    """Each draws with its own key, in this process, whose RNGs stay as they are, and in workers."""
    before = random.getstate()
    loader = RequestedDataLoader(Names(), Endless(), num_workers=workers)
    found = batches(loader, 3)
    assert len({row[1] for batch in found for row in batch}) == 9
    assert [row[0] for row in found[0]] == [1, 2, 2]
    assert found == batches(RequestedDataLoader(Names(), Endless()), 3)
    assert batches(loader, 3) == found
    assert random.getstate() == before


@pytest.mark.parametrize("workers", [0, 1])
def test_tensors_are_fetched_whole_also_from_the_end(workers: int) -> None:
    """Negative positions count from the end, as they do for single samples."""
    loader = RequestedDataLoader(TensorDataset(torch.arange(5)), Positions(), num_workers=workers)
    assert loader.whole_batches
    (batch,) = next(iter(loader))
    assert batch.tolist() == [3, 0, 4]


def test_users_see_length_and_indices() -> None:
    """The batch sampler is what was passed."""
    loader = RequestedDataLoader(Names(), Endless())
    assert len(loader) == 2
    assert next(iter(loader.batch_sampler or [])) == ["a", "bb", "bb"]
