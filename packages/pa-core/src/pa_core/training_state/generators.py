"""The random generators that belong to a loader of the user's own, its samplers or its dataset."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from pa_core.data.custom_loader import loader_parts

__all__ = ["capture_generators", "restore_generators"]


def capture_generators(loader: object) -> dict[str, Any]:
    """Return the states of all generators that are attributes of a loader, its samplers or its dataset.

    Generators of torch, numpy and Python are found.

    Args:
        loader: A loader of the user's own.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader
        >>> loader = DataLoader(range(8), shuffle=True, generator=torch.Generator())
        >>> states = capture_generators(loader)
        >>> first = [int(sample) for sample in loader]
        >>> restore_generators(loader, states)
        >>> [int(sample) for sample in loader] == first
        True
    """
    return {name: generator.get() for name, generator in _generators(loader)}


def restore_generators(loader: object, states: Mapping[str, Any]) -> None:
    """Put generators back to where they were; those that have no state stay as they are.

    Args:
        loader: A loader that is made as the one whose generators were captured.
        states: What ``capture_generators`` returned.
    """
    for name, generator in _generators(loader):
        if name in states:
            generator.set(states[name])


class _Generator(NamedTuple):
    """One generator, whoever's class it is."""

    get: Callable[[], Any]
    set: Callable[[Any], object]


def _generators(loader: object) -> Iterator[tuple[str, _Generator]]:
    for path, part in loader_parts(loader).items():
        for name, value in getattr(part, "__dict__", {}).items():
            generator = _as_generator(value)
            if generator is not None:
                yield f"{path}.{name}", generator


def _as_generator(value: Any) -> _Generator | None:
    numpy_random: Any = importlib.import_module("numpy.random")  # comes with accelerate
    if isinstance(value, (torch.Generator, numpy_random.RandomState)):
        of_torch_or_numpy: Any = value
        return _Generator(of_torch_or_numpy.get_state, of_torch_or_numpy.set_state)
    if isinstance(value, random.Random):
        return _Generator(value.getstate, value.setstate)
    if isinstance(value, numpy_random.Generator):
        bits = value.bit_generator
        return _Generator(partial(getattr, bits, "state"), partial(setattr, bits, "state"))
    return None
