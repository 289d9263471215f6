"""Workers have copies of the dataset: what becomes of the dataset between epochs becomes of them too."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset
from typing_extensions import override

from pa_data import KeyedDataLoader


class Transform:
    """A transform with a strength."""

    def __init__(self) -> None:
        self.strength = 0

    def __call__(self, index: int) -> int:
        """Transform a sample."""
        return self.strength


STRENGTH = {"of all": 0}


class Curriculum(Dataset[tuple[int, int]]):
    """A sample is what its copy of the dataset says at that time, and in which process."""

    def __init__(self) -> None:
        self.level = 0
        self.history: list[int] = []
        self.difficulty = torch.zeros(4)
        self.transform = Transform()
        self.epoch = -1

    def __len__(self) -> int:
        return 8

    def set_epoch(self, epoch: int) -> None:
        """Be told an epoch."""
        self.epoch = epoch

    @override
    def __getitem__(self, index: int) -> tuple[int, int]:
        values = self.level, len(self.history), int(self.difficulty[0]), self.transform(index), STRENGTH["of all"]
        return max(values), os.getpid()


class Collate:
    """A collate function with a strength."""

    strength = 0

    def __call__(self, samples: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Make a batch."""
        return [(max(value, self.strength), process) for value, process in samples]


def set_strength(dataset: Curriculum, collate: Collate, value: int) -> None:
    """A module's global that the dataset reads."""
    STRENGTH["of all"] = value


CHANGES: dict[str, Callable[[Curriculum, Collate, int], Any]] = {
    "attribute": lambda dataset, _, value: setattr(dataset, "level", value),
    "list": lambda dataset, _, value: dataset.history.extend([0] * (value > 0)),
    "tensor in place": lambda dataset, _, value: dataset.difficulty.fill_(value),
    "transform": lambda dataset, _, value: setattr(dataset.transform, "strength", value),
    "collate function": lambda _, collate, value: setattr(collate, "strength", value),
    "global": set_strength,
}


def wrapped(dataset: Curriculum, way: str) -> Dataset[Any]:
    """The dataset, or one that holds it."""
    if way == "subset":
        return Subset(dataset, [1, 3, 5, 7])
    return ConcatDataset([dataset, dataset]) if way == "concatenation" else dataset


EVERY = [(change, way, "fork") for change in CHANGES for way in ("itself", "subset")]


@pytest.mark.parametrize(
    ("change", "way", "method"),
    [*EVERY, ("tensor in place", "concatenation", "fork"), ("attribute", "itself", "spawn")],
)
def test_a_change_between_epochs_reaches_persistent_workers(change: str, way: str, method: str) -> None:
    """Whoever changes the dataset or the collate function finds that in the next epoch, as without workers."""
    dataset, collate = Curriculum(), Collate()
    loader = KeyedDataLoader(
        wrapped(dataset, way),
        4,
        num_workers=1,
        persistent_workers=True,
        collate_fn=collate,
        multiprocessing_context=method,
    )
    seen: list[int] = []
    for epoch in range(3):
        CHANGES[change](dataset, collate, epoch)
        loader.set_epoch(epoch)
        seen.append(next(iter(batch[0][0] for batch in [*loader])))
    STRENGTH["of all"] = 0
    assert seen == [0, 1, 2]


class Told(Curriculum):
    """A sample is the epoch that its copy was told."""

    @override
    def __getitem__(self, index: int) -> tuple[int, int]:
        return self.epoch, os.getpid()


class ToldCollate(Collate):
    """Is told the epoch too."""

    def set_epoch(self, epoch: int) -> None:
        """Be told an epoch."""
        self.strength = 10 * epoch


@pytest.mark.parametrize("collate", [None, ToldCollate()])
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_each_copy_is_told_the_epoch_by_workers_that_stay(num_workers: int, collate: Collate | None) -> None:
    """``set_epoch`` of a dataset with indices, or of a collate function, is called as that of a stream is."""
    options: dict[str, Any] = {"persistent_workers": True} if num_workers else {}
    loader = KeyedDataLoader(
        Subset(Told(), range(8)), 2, num_workers=num_workers, collate_fn=collate or list, **options
    )
    told: list[set[int]] = []
    processes = set[int]()
    for epoch in (0, 1, 2, 5):
        loader.set_epoch(epoch)
        samples = [sample for batch in loader for sample in batch]
        told.append({epoch for epoch, _ in samples})
        processes |= {process for _, process in samples}
    assert told == ([{0}, {1}, {2}, {5}] if collate is None else [{0}, {10}, {20}, {50}])
    assert len(processes) == max(1, num_workers)


def test_workers_of_a_dataset_that_stays_as_it_is_stay() -> None:
    """None is started again for what is not a change."""
    loader = KeyedDataLoader(Curriculum(), 2, num_workers=2, persistent_workers=True, collate_fn=Collate())
    processes = {process for _ in range(3) for batch in loader for _, process in batch}
    assert len(processes) == 2


def test_an_evaluation_is_told_no_epoch() -> None:
    """It is the same each time."""
    dataset = Told()
    loader = KeyedDataLoader(dataset, 2, split="eval", collate_fn=list)
    loader.set_epoch(3)
    assert {epoch for batch in loader for epoch, _ in batch} == {-1}
