"""The global streams of a key."""

from __future__ import annotations

import random

import numpy
import torch

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
