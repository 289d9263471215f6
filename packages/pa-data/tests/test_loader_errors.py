"""What a keyed loader refuses: each error says what was given, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset
from typing_extensions import override

from pa_data import KeyedDataLoader
from pa_data.errors import ConfigurationError, EmptyDatasetError
from tests.support.drawing import Indices


class Endless(IterableDataset[int]):
    """Can only be iterated."""

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


class WithoutLength(Dataset[int]):
    """Cannot say how many samples it has."""

    @override
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("dataset", [TensorDataset(torch.zeros(0, 3)), Indices(0)])
def test_an_empty_dataset_is_refused(dataset: Dataset[Any]) -> None:
    """There is nothing to train or evaluate on, and the error says so before anything starts."""
    with pytest.raises(EmptyDatasetError, match=r"0 samples(.|\n)*at least one(.|\n)*path"):
        KeyedDataLoader(dataset, batch_size=2)


@pytest.mark.parametrize("split", ["train", "eval"])
def test_a_dataset_smaller_than_a_global_batch_is_refused_with_drop_last(split: Any) -> None:
    """An epoch without a step would end without a word; the error names the sizes and the way out."""
    with pytest.raises(EmptyDatasetError, match=r"7 samples, and global batches of 8(.|\n)*drop_last=False"):
        KeyedDataLoader(Indices(7), batch_size=4, num_processes=2, drop_last=True, split=split)


@pytest.mark.parametrize("dataset", [Endless(), WithoutLength()])
def test_a_dataset_without_positions_is_refused(dataset: Dataset[Any]) -> None:
    """An order needs a length and indices; a plain DataLoader serves what has none."""
    words = rf"needs a dataset with a length(.|\n)*{type(dataset).__name__}(.|\n)*__len__(.|\n)*utils.data.DataLoader"
    with pytest.raises(ConfigurationError, match=words):
        KeyedDataLoader(dataset, batch_size=2)


@pytest.mark.parametrize("batch_size", [0, -1, None])
def test_a_batch_size_below_one_is_refused(batch_size: int | None) -> None:
    """The error names the batch size that was given."""
    with pytest.raises(ConfigurationError, match=f"batch_size must be a whole number >= 1, got {batch_size}"):
        KeyedDataLoader(Indices(5), batch_size=batch_size)


@pytest.mark.parametrize(("rank", "num_processes"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_that_does_not_exist_is_refused(rank: int, num_processes: int) -> None:
    """A wrong rank would silently train on the wrong part of the data."""
    with pytest.raises(ConfigurationError, match=f"rank={rank}, num_processes={num_processes}"):
        KeyedDataLoader(Indices(5), batch_size=2, rank=rank, num_processes=num_processes)


def test_a_position_outside_the_epoch_is_refused_and_changes_nothing() -> None:
    """A state of a larger dataset is refused, and the loader stays where it was."""
    loader = KeyedDataLoader(Indices(10), batch_size=2)
    loader.start_epoch(1, position=4)
    with pytest.raises(ConfigurationError, match="start=12 in an epoch of 10 samples"):
        loader.start_epoch(2, position=12)
    assert (loader.epoch, loader.position) == (1, 4)
    with pytest.raises(ConfigurationError, match="always begins at its first sample: leave out position=4"):
        KeyedDataLoader(Indices(10), batch_size=2, split="eval").start_epoch(0, position=4)


def test_an_unknown_order_is_refused_at_once() -> None:
    """A stored order that this version does not have is refused before the first batch."""
    with pytest.raises(ConfigurationError, match="quantum-v9"):
        KeyedDataLoader(Indices(10), batch_size=2, algorithm="quantum-v9")
    loader = KeyedDataLoader(Indices(10), batch_size=2)
    with pytest.raises(ConfigurationError, match="quantum-v9"):
        loader.algorithm = "quantum-v9"
    assert loader.algorithm is None


@pytest.mark.parametrize(
    ("options", "message"),
    [({"split": "test"}, "split='test'"), ({"in_order": False}, "in_order=False"), ({"timeout": 3}, "timeout=3")],
)
def test_options_that_contradict_the_loader_are_refused(options: dict[str, Any], message: str) -> None:
    """Options that cannot be honoured are not ignored."""
    with pytest.raises(ConfigurationError, match=message):
        KeyedDataLoader(Indices(10), batch_size=2, **options)


@pytest.mark.parametrize("option", ["sampler", "batch_sampler"])
def test_a_sampler_of_the_users_is_not_accepted(option: str) -> None:
    """An order of the user's own needs a loader of the user's own."""
    options: dict[str, Any] = {option: [[0]]}
    with pytest.raises(TypeError, match=option):
        KeyedDataLoader(Indices(10), batch_size=2, **options)
