"""The global streams of a key, and those of the process behind them."""

from __future__ import annotations

import random

import numpy
import pytest
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator

from pa_core.data import keyed_streams, mix, seed_streams
from tests.pa_core.data.drawing import preserved_streams


def draw() -> tuple[float, float, float]:
    """Draw once from each global stream."""
    return random.random(), float(numpy.random.rand()), torch.rand(()).item()


def draw_normal() -> tuple[float, float, float]:
    """Draw a normal number from each global stream."""
    return random.gauss(0, 1), float(numpy.random.randn()), torch.randn(()).item()


def fail_after_drawing() -> None:
    """Raise after the streams were seeded and drawn from."""
    with keyed_streams(5):
        draw()
        raise KeyError


def test_a_key_decides_every_draw() -> None:
    """The same key gives the same draws from all three streams, another key gives others."""
    with keyed_streams(mix(1, 2, 3)):
        first = draw()
        seed_streams(mix(1, 2, 4))
        other = draw()
        seed_streams(mix(1, 2, 3))
        again = draw()
    with preserved_streams():
        seed_streams(mix(1, 2, 3))
        of_the_process = draw()
    assert first == again == of_the_process
    assert all(a != b for a, b in zip(first, other, strict=True))


def test_the_streams_are_put_back() -> None:
    """What the main process draws next is what it would have drawn without the block."""
    with preserved_streams():
        expected = [draw() for _ in range(3)]
    with keyed_streams(5):
        draw()
    assert [draw() for _ in range(3)] == expected


def test_the_streams_are_put_back_after_an_error() -> None:
    """A dataset that raises does not disturb the main process's streams either."""
    with preserved_streams():
        expected = draw()
    with pytest.raises(KeyError):
        fail_after_drawing()
    assert draw() == expected


def test_a_gaussian_in_reserve_is_put_back() -> None:
    """Streams that make normal numbers in pairs keep the second one in reserve; it is put back too."""
    draw_normal()
    with preserved_streams():
        expected = [draw_normal(), draw_normal()]
    with keyed_streams(9):
        draw_normal()
    assert [draw_normal(), draw_normal()] == expected


def test_streams_of_one_key_within_those_of_another() -> None:
    """A dataset may use keys of its own: behind them it draws as if it had not."""
    outer, inner = mix(1, 0), mix(2, 0)
    with keyed_streams(outer):
        expected = [draw(), draw()]
    with keyed_streams(outer):
        drawn = [draw()]
        with keyed_streams(inner):
            within = [draw(), draw()]
        drawn.append(draw())
    with keyed_streams(inner):
        assert [draw(), draw()] == within != expected
    assert drawn == expected


def test_numpy_may_draw_from_a_generator_of_the_users() -> None:
    """Within the streams of a key it draws as ever; behind them the user's generator goes on."""
    own, users = get_bit_generator(), numpy.random.PCG64(0)
    with keyed_streams(1):
        keyed = draw()
    set_bit_generator(users)
    try:
        expected = numpy.random.Generator(numpy.random.PCG64(0)).random()
        with keyed_streams(1):
            assert draw() == keyed
        assert get_bit_generator() is users
        assert numpy.random.rand() == expected
    finally:
        set_bit_generator(own)


def test_numpy_and_torch_do_not_repeat_each_other() -> None:
    """Both make their numbers with a Mersenne twister; seeded alike, their draws would be the same."""
    with keyed_streams(mix(0, 0, 0)):
        numpy_words = numpy.random.randint(0, 2**32, 8, dtype=numpy.uint32) % 2**31
        torch_words = torch.empty(8, dtype=torch.int64).random_(0, 2**31)
    assert not set(map(int, numpy_words)) & set(map(int, torch_words))
