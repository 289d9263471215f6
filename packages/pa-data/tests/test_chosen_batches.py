"""Some batches of a dataset may be loaded alone, as those that are left of a job that was interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset
from typing_extensions import override

from pa_data import KeyedDataLoader
from pa_data.errors import DataError
from pa_data.orders import Shuffled

NUM_SAMPLES, SIZE = 11, 4


class Noise(Dataset[Tensor]):
    """Samples with noise of the global generator."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    @override
    def __getitem__(self, index: int) -> Tensor:
        return index + torch.rand(())


class Stream(IterableDataset[int]):
    """Samples that come in one order."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(range(NUM_SAMPLES))


@pytest.mark.parametrize("batches", [[0, 1, 2], [1], [2], [0, 2], [1, 0, 1, 2]])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_they_are_those_of_all_batches(batches: list[int], num_workers: int) -> None:
    """They have the same samples, which draw the same."""
    every = [batch.tolist() for batch in KeyedDataLoader(Noise(), SIZE, seed=3)]
    chosen = KeyedDataLoader(Noise(), SIZE, seed=3, batches=batches, num_workers=num_workers)
    assert [batch.tolist() for batch in chosen] == [every[number] for number in batches]
    assert len(chosen) == len(batches)


def test_they_may_be_of_a_stream() -> None:
    """Its samples before the first of them are read and left out."""
    assert [batch.tolist() for batch in KeyedDataLoader(Stream(), SIZE, batches=[1, 2])] == [[4, 5, 6, 7], [8, 9, 10]]


def test_a_state_is_of_the_chosen_batches() -> None:
    """A position among other batches means other samples."""
    state = KeyedDataLoader(Noise(), SIZE, batches=[0, 1]).state_dict()
    KeyedDataLoader(Noise(), SIZE, batches=[0, 1]).load_state_dict(state)
    with pytest.raises(DataError, match="order"):
        KeyedDataLoader(Noise(), SIZE, batches=[0, 2]).load_state_dict(state)


@pytest.mark.parametrize("batches", [[], [3], [-1], [2, 0]])
def test_what_is_no_batch_is_refused(batches: list[int]) -> None:
    """So is a shorter batch that is not the last one."""
    with pytest.raises(DataError, match="0 to 2, and batch 2 is shorter"):
        KeyedDataLoader(Noise(), SIZE, batches=batches)
    whole = TensorDataset(torch.arange(8))
    assert [batch[0].tolist() for batch in KeyedDataLoader(whole, SIZE, batches=[1, 0])] == [[4, 5, 6, 7], [0, 1, 2, 3]]


@pytest.mark.parametrize(
    "option", [{"shuffle": True}, {"order": Shuffled()}, {"drop_last": True}, {"num_processes": 2}]
)
def test_they_have_their_order(option: dict[str, Any]) -> None:
    """What would choose others is refused."""
    with pytest.raises(DataError, match="Chosen batches have their order"):
        KeyedDataLoader(Noise(), SIZE, batches=[0], **option)
