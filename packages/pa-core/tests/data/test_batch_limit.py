"""The first batches of a loader, as a loader."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import TensorDataset

from pa_core.data import DataLoaderSlice, KeyedDataLoader
from pa_core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("slice_size", "expected"), [(1, [0]), (3, [0, 1, 2]), (5, [0, 1, 2, 3, 4]), (9, [0, 1, 2, 3, 4])]
)
def test_the_first_batches_are_yielded_each_time(slice_size: int, expected: list[int]) -> None:
    """A slice yields as many batches as its length says, again and again."""
    piece = DataLoaderSlice([0, 1, 2, 3, 4], slice_size)
    assert len(piece) == len(expected)
    assert list(piece) == expected
    assert list(piece) == expected


def test_no_batch_is_loaded_in_vain() -> None:
    """The loader is asked for the batches of the slice and for no other."""
    asked: list[int] = []

    class Loader:
        def __len__(self) -> int:
            return 10

        def __iter__(self) -> Iterator[int]:
            for index in range(10):
                asked.append(index)
                yield index

    assert list(DataLoaderSlice(Loader(), 2)) == [0, 1]
    assert asked == [0, 1]


def test_attributes_are_those_of_the_loader() -> None:
    """What users read of a loader they read of its slice."""
    loader = KeyedDataLoader(TensorDataset(torch.zeros(10)), batch_size=3, device="cpu")
    piece = DataLoaderSlice(loader, slice_size=2)
    assert piece.dataset is loader.dataset
    assert piece.device == torch.device("cpu")
    assert piece.batch_size == 3
    assert piece.wrapped is loader
    assert piece.slice_size == 2
    with pytest.raises(AttributeError, match="no_such_attribute"):
        _ = piece.no_such_attribute


def test_a_slice_can_be_copied_and_pickled() -> None:
    """Forwarding attributes does not stand in the way of copying."""
    piece = DataLoaderSlice([1, 2, 3], 2)
    assert list(copy.deepcopy(piece)) == [1, 2]
    assert list(pickle.loads(pickle.dumps(piece))) == [1, 2]


@pytest.mark.parametrize("slice_size", [0, -1])
def test_an_empty_slice_is_refused(slice_size: int) -> None:
    """The error says what was given and what to pass."""
    with pytest.raises(ConfigurationError, match=rf"slice_size must be .* at least 1, got {slice_size}"):
        DataLoaderSlice([1], slice_size)
