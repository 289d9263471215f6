"""Seeding the global streams for a sample, and putting them back."""

from __future__ import annotations

import random

import numpy
import pytest
import torch

from pa_core.data import mix, preserved_streams, seed_streams


def draw() -> tuple[float, float, float]:
    """Draw once from each global stream."""
    return random.random(), float(numpy.random.rand()), torch.rand(()).item()


def fail_after_drawing() -> None:
    """Raise after the streams were seeded and drawn from."""
    with preserved_streams():
        seed_streams(5)
        draw()
        raise KeyError


def test_a_key_decides_every_draw() -> None:
    """The same key gives the same draws from all three streams, another key gives others."""
    with preserved_streams():
        seed_streams(mix(1, 2, 3))
        first = draw()
        seed_streams(mix(1, 2, 4))
        other = draw()
        seed_streams(mix(1, 2, 3))
        again = draw()
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))


def test_the_streams_are_put_back() -> None:
    """What the main process draws next is what it would have drawn without the block."""
    with preserved_streams():
        expected = [draw() for _ in range(3)]
    with preserved_streams():
        seed_streams(5)
        draw()
    with preserved_streams():
        assert [draw() for _ in range(3)] == expected


def test_the_streams_are_put_back_after_an_error() -> None:
    """A dataset that raises does not disturb the main process's streams either."""
    with preserved_streams():
        expected = draw()
    with pytest.raises(KeyError):
        fail_after_drawing()
    with preserved_streams():
        assert draw() == expected


def test_a_gaussian_in_reserve_is_put_back() -> None:
    """Streams that make normal numbers in pairs keep the second one in reserve; it is put back too."""
    with preserved_streams():
        seed_streams(1)
        random.gauss(0, 1)
        numpy.random.randn()
        torch.randn(())
        with preserved_streams():
            expected = random.gauss(0, 1), float(numpy.random.randn()), torch.randn(()).item()
        with preserved_streams():
            seed_streams(9)
        assert (random.gauss(0, 1), float(numpy.random.randn()), torch.randn(()).item()) == expected


def test_numpy_and_torch_do_not_repeat_each_other() -> None:
    """Both make their numbers with a Mersenne twister; seeded alike, their draws would be the same."""
    with preserved_streams():
        seed_streams(mix(0, 0, 0))
        numpy_words = numpy.random.randint(0, 2**32, 8, dtype=numpy.uint32) % 2**31
        torch_words = torch.empty(8, dtype=torch.int64).random_(0, 2**31)
    assert not set(map(int, numpy_words)) & set(map(int, torch_words))
