"""Keys, seeds and states of generators, in workers too."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from pa_data import KeyedDataLoader, worker_init_fn
from pa_data.rng import mix, seed_rng


def draw() -> tuple[float, float, float]:
    """Draw once from each global stream."""
    return random.random(), float(numpy.random.rand()), torch.rand(()).item()


def test_a_key_decides_every_draw() -> None:
    """The same key gives the same draws from all three streams, another key gives others."""
    draws: list[tuple[float, float, float]] = []
    for key in (mix(1, 2, 3), mix(1, 2, 4), mix(1, 2, 3)):
        seed_rng(key)
        draws.append(draw())
    first, other, again = draws
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))


def test_numpy_and_torch_do_not_repeat_each_other() -> None:
    """Both make their numbers with a Mersenne twister; seeded alike, their draws would be the same."""
    seed_rng(mix(0, 0, 0))
    numpy_words = numpy.random.randint(0, 2**32, 8, dtype=numpy.uint32) % 2**31
    torch_words = torch.empty(8, dtype=torch.int64).random_(0, 2**31)
    assert not set(map(int, numpy_words)) & set(map(int, torch_words))


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
