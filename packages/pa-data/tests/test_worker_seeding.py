"""Streams of the workers of a loader that a user makes himself."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from pa_data import KeyedDataLoader, worker_init_fn


class Draws(Dataset[tuple[int, ...]]):
    """Each sample is a draw from each of the three global streams."""

    def __len__(self) -> int:
        """The number of samples."""
        return 2

    @override
    def __getitem__(self, index: int) -> tuple[int, ...]:
        import numpy as np

        return random.getrandbits(31), int(np.random.randint(2**31 - 1)), int(torch.randint(2**31 - 1, ()).item())


def drawn(seed: int, loader_class: Any = DataLoader, **kwargs: Any) -> list[tuple[int, ...]]:
    """What two workers draw, one sample each, in a process that was seeded so."""
    torch.default_generator.manual_seed(seed)
    loader = loader_class(Draws(), batch_size=1, num_workers=2, **kwargs)
    return [tuple(int(value) for value in batch) for batch in loader]


def test_workers_draw_differently_and_the_seed_decides_what(monkeypatch: pytest.MonkeyPatch) -> None:
    """No two workers share a stream, on one process or on several that were seeded alike; a seed repeats all of it."""
    first = drawn(0, worker_init_fn=worker_init_fn)
    monkeypatch.setenv("RANK", "1")
    second = drawn(0, worker_init_fn=worker_init_fn)

    streams = [*zip(*first, strict=True), *zip(*second, strict=True)]
    assert all(one != other for one, other in streams)
    assert set(first).isdisjoint(second)
    assert drawn(0, worker_init_fn=worker_init_fn) == second
    assert drawn(1, worker_init_fn=worker_init_fn) != second


def test_without_it_the_processes_of_a_run_draw_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the function is for: torch's own seeds of workers do not depend on the rank."""
    first = drawn(0)
    monkeypatch.setenv("RANK", "1")
    assert drawn(0) == first


def test_it_changes_nothing_in_a_loader_of_the_trainer() -> None:
    """Where each sample has a key, draws are the same with the function and without."""
    assert drawn(0, KeyedDataLoader, worker_init_fn=worker_init_fn) == drawn(0, KeyedDataLoader)
