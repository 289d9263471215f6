"""Seeds the random number generators for each sample, but only those that samples draw from."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import torch

from pa_data.rng import extend_key, is_numpy_random_imported, numpy_random, numpy_seed

__all__ = ["SampleSeeds"]

_WATCHED: Final = 0xA5EED_0F_A_BA7C4
"""The seed of generators that are not seeded for each sample."""


class SampleSeeds:
    """Seeds the generators of torch, Python and NumPy for each sample, as ``pa_data.rng.seed_rng`` does.

    Seeding the generators of Python and NumPy takes five times as long as seeding torch's generator, and most samples
    draw from few generators. So the former are seeded for each sample of the first batch, and afterwards only if a
    sample or the collate function has drawn from them. A generator that is left out gets a fixed seed at the start of a
    batch. If it has moved at the end, the batch has to be read again with seeds for each sample, as all later batches
    are. Therefore samples get the same random numbers as if all generators were always seeded. Torch's generator is
    always seeded, since samples may depend on its seed without drawing, through ``torch.initial_seed()``.
    """

    def __init__(self) -> None:
        self._generators = (_OfPython(), _OfNumPy())
        self._is_first = True

    def begin(self) -> Callable[[int, int], None]:
        """Begin a batch.

        Returns:
            A function that seeds the generators for a sample, from the key of the batch and the number of the sample.
        """
        for generator in self._generators:
            if not generator.draws:
                generator.seed(_WATCHED)
        others = [generator.seed for generator in self._generators if generator.draws]
        seed_torch = torch.default_generator.manual_seed

        def seed(key: int, draw: int) -> None:
            key = extend_key(key, draw)
            seed_torch(key)
            for seed_other in others:
                seed_other(key)

        return seed

    def must_read_again(self) -> bool:
        """End a batch, and return whether samples drew from a generator that was not seeded for each sample."""
        must_read_again = False
        for generator in self._generators:
            if self._is_first or not generator.draws:
                has_moved = generator.has_moved()
                must_read_again |= has_moved and not generator.draws
                generator.draws = has_moved
        self._is_first = False
        return must_read_again


class _OfPython:
    """The generator of Python's ``random``."""

    def __init__(self) -> None:
        self.draws: bool = True
        self._seed = 0

    def seed(self, seed: int) -> None:
        self._seed = seed
        random.seed(seed)

    def has_moved(self) -> bool:
        """Return whether a number was drawn since the seed, judged by the next number."""
        return random.getrandbits(64) != _first_of_python(self._seed)


class _OfNumPy:
    """The generator of ``numpy.random``, which nothing draws from unless it is imported."""

    def __init__(self) -> None:
        self.draws: bool = is_numpy_random_imported()
        self._seed: int | None = None

    def seed(self, seed: int) -> None:
        self._seed = None
        if is_numpy_random_imported():
            self._seed = numpy_seed(seed)
            numpy_random().seed(self._seed)

    def has_moved(self) -> bool:
        """Return whether a number was drawn since the seed, judged by the next number."""
        return is_numpy_random_imported() and (self._seed is None or _next_of_numpy() != _first_of_numpy(self._seed))


@lru_cache(maxsize=8)
def _first_of_python(seed: int) -> int:
    return random.Random(seed).getrandbits(64)


def _next_of_numpy() -> list[int]:
    draw = numpy_random().get_bit_generator().random_raw
    return [draw(), draw()]


@lru_cache(maxsize=8)
def _first_of_numpy(seed: int) -> list[int]:
    generator = numpy_random().MT19937()
    numpy_random().RandomState(generator).seed(seed)
    return [generator.random_raw(), generator.random_raw()]
