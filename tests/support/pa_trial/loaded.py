"""Datasets that draw while a sample is loaded, and what loaders make of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler
from typing_extensions import override

from pa_trial import DataLoader

__all__ = ["Drawing", "MiddleOut", "Quiet", "as_lists", "numbers", "rng_states", "seed_all", "stream"]

numbers: Any = range
"""A dataset whose samples are their index, as far as torch's types let a range be one."""


class Quiet(Dataset[Tensor]):
    """Samples that are their own index, and a note of each that was loaded."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return self.size

    @override
    def __getitem__(self, index: int) -> Tensor:
        self.loaded.append(index)
        return torch.tensor([float(index)])


class Drawing(Quiet):
    """An index and a draw from each of the three global RNGs; only from the given index on, if there is one."""

    def __init__(self, size: int, draws_from: int = 0) -> None:
        super().__init__(size)
        self.draws_from = draws_from

    @override
    def __getitem__(self, index: int) -> Tensor:
        drawn = [0.0, 0.0, 0.0]
        if index >= self.draws_from:
            drawn = [random.random(), np.random.normal(), float(torch.rand(()))]
        return torch.tensor([index, *drawn], dtype=torch.float64)


class MiddleOut(Sampler[int]):
    """A sampler of a user's: begins somewhere at random, and counts its iterations."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.iterations = 0

    def __len__(self) -> int:
        return self.size

    @override
    def __iter__(self) -> Iterator[int]:
        self.iterations += 1
        begin = random.randrange(self.size) + self.iterations + round(9 * np.random.normal())
        for number in range(self.size):
            drawn = int(torch.randint(2, ())) + (round(9 * np.random.normal()) if number % 3 == 1 else 0)
            yield (begin + number + drawn) % self.size


def stream(
    loader: DataLoader[Any], batches: int, *, skip: int = 0, size: int = 1, rank: int = 0, seed: int = 3
) -> list[Any]:
    """The next batches of a process in a training, as nested lists."""
    keyed = loader.get_data_loader(repeat=True, skip=skip, num_replicas=size, rank=rank, seed=seed)
    return [as_lists(batch) for batch in islice(keyed, batches)]


def as_lists(batch: Any) -> Any:
    """A batch, or a state, with lists for its tensors and arrays."""
    if isinstance(batch, dict):
        return {name: as_lists(part) for name, part in cast("dict[object, Any]", batch).items()}
    if isinstance(batch, Tensor | np.ndarray):
        return batch.tolist()
    return [as_lists(part) for part in batch] if isinstance(batch, list | tuple) else batch


def seed_all(seed: int) -> None:
    """Seed the global RNGs of this process."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def rng_states() -> list[Any]:
    """The states of the global RNGs of this process."""
    of_numpy: Any = np.random.get_state()
    words = of_numpy[1].tolist()
    return [random.getstate(), of_numpy[0], words, of_numpy[2:], torch.get_rng_state().tolist()]
