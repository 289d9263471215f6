"""Random numbers: keys to seed with, and the RNG states of a process, which can be seeded, saved and restored.

Seeding costs 6 to 12 microseconds; saving and restoring all states eight times as much, so that is done once a batch.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any, TypeAlias

import torch

__all__ = [
    "RNGState",
    "capture_rng_state",
    "extend_key",
    "mix",
    "numpy_random",
    "preserve_rng_state",
    "restore_rng_state",
    "restored_rng_states",
    "seed_rng",
]

RNGState: TypeAlias = dict[str, Any]
"""The states of the generators of a process, by name."""

_MASK_64 = 0xFFFF_FFFF_FFFF_FFFF
_GOLDEN_GAMMA = 0x9E37_79B9_7F4A_7C15
_MULTIPLIER_1 = 0xBF58_476D_1CE4_E5B9
_MULTIPLIER_2 = 0x94D0_49BB_1331_11EB


def extend_key(key: int, value: int) -> int:
    """Mix one more value into a 64-bit key.

    The new key is the splitmix64 finaliser (Steele, Lea and Flood, "Fast splittable pseudorandom number
    generators", 2014) of ``(key ^ value) + 0x9E3779B97F4A7C15``. It is a bijection of ``value`` for a fixed
    key, so different values never give the same key. Saved states rely on it: it never changes.

    Args:
        key: A key from `mix` or `extend_key`.
        value: Any integer; it counts modulo 2**64.

    Returns:
        An integer in ``[0, 2**64)``.
    """
    mixed = ((key ^ (value & _MASK_64)) + _GOLDEN_GAMMA) & _MASK_64
    mixed = ((mixed ^ (mixed >> 30)) * _MULTIPLIER_1) & _MASK_64
    mixed = ((mixed ^ (mixed >> 27)) * _MULTIPLIER_2) & _MASK_64
    return mixed ^ (mixed >> 31)


def mix(*values: int) -> int:
    """Turn some integers, such as (seed, epoch, sample index), into one well-mixed 64-bit key.

    The order of the values counts, and ``mix(a, b, c) == extend_key(mix(a, b), c)``.

    Args:
        values: Any integers; each counts modulo 2**64.

    Returns:
        An integer in ``[0, 2**64)``.

    Example:
        >>> mix(0, 1) == mix(1, 0)
        False
        >>> mix(7, 3, 12) == extend_key(mix(7, 3), 12)
        True
    """
    key = 0
    for value in values:
        key = extend_key(key, value)
    return key


_generators_of_numpy: dict[type[Any], list[Any]] = {}
"""By their kind, those that no context has in use."""


def seed_rng(key: int, *more: int, device: torch.device | None = None) -> None:
    """Seed the global generators of Python, of NumPy and of torch on the CPU.

    Generators that a dataset owns are left alone.

    Args:
        key: A well-mixed 64-bit integer, such as ``mix(seed, epoch, index)``.
        *more: Integers that extend the key, see `extend_key`.
        device: An accelerator whose generator is seeded too, if there is any.

    Example:
        >>> from pa_data.rng import mix
        >>> seed_rng(mix(0, 3, 12))
        >>> first = random.random(), torch.rand(()).item()
        >>> seed_rng(mix(0, 3, 12))
        >>> first == (random.random(), torch.rand(()).item())
        True
    """
    for value in more:
        key = extend_key(key, value)
    random.seed(key)
    # torch.manual_seed goes through every device and costs a hundred times as much.
    torch.default_generator.manual_seed(key)
    # Numpy and torch expand 32 bits into the same Mersenne twister; torch takes the key's lower half.
    numpy_random().seed(key >> 32)
    if device is not None and device.type != "cpu":
        torch.get_device_module(device).manual_seed(key)


@contextmanager
def preserve_rng_state() -> Generator[None]:
    """Save the global RNG states and restore them on exit.

    Seed them before drawing: inside the context their state is undefined. NumPy's functions draw from another generator
    there, since restoring the state of NumPy's would take as long as all the rest.
    """
    random_of_numpy = numpy_random()
    of_python, of_torch = random.getstate(), torch.default_generator.get_state()
    of_numpy = random_of_numpy.get_state(legacy=False)
    generator: object = random_of_numpy.get_bit_generator()
    # Of the same kind, which may be the user's choice: workers, where nothing is restored, draw from that one.
    kind: type[Any] = type(generator)
    others = _generators_of_numpy.setdefault(kind, [])
    other = others.pop() if others else kind(0)
    random_of_numpy.set_bit_generator(other)
    try:
        yield
    finally:
        random.setstate(of_python)
        torch.default_generator.set_state(of_torch)
        random_of_numpy.set_bit_generator(generator)
        others.append(other)
        # Numpy makes normal numbers in pairs; the second one is kept beside the generator, and was lost.
        if of_numpy["has_gauss"]:
            random_of_numpy.set_state(of_numpy)


@cache
def numpy_random() -> ModuleType:
    """Return ``numpy.random``, which is not imported before something draws."""
    return importlib.import_module("numpy.random")


def capture_rng_state(device: torch.device) -> RNGState:
    """Return the RNG states of Python, NumPy, torch, and torch on the accelerator.

    Args:
        device: The device of the run.

    Example:
        >>> import torch
        >>> state = capture_rng_state(torch.device("cpu"))
        >>> first = torch.rand(1)
        >>> restore_rng_state(state, torch.device("cpu"))
        >>> bool(torch.rand(1) == first)
        True
    """
    state = {
        "python": random.getstate(),
        "numpy": numpy_random().get_state(),
        "torch": torch.default_generator.get_state(),
    }
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state(device)
    return state


@contextmanager
def restored_rng_states(device: torch.device, loaders: Iterable[object] = ()) -> Generator[None]:
    """Restore all RNG states on exit, and the generators that loaders and their samplers draw from.

    Unlike inside `preserve_rng_state`, draws continue from the states as they are.

    Args:
        device: The device of the run.
        loaders: Loaders, samplers or generators.

    Example:
        >>> with restored_rng_states(torch.device("cpu")):
        ...     first = torch.rand(1)
        >>> bool(torch.rand(1) == first)
        True
    """
    state = capture_rng_state(device)
    generators = [(one, one.get_state()) for loader in loaders for one in _generators(loader)]
    try:
        yield
    finally:
        for generator, before in generators:
            generator.set_state(before)
        restore_rng_state(state, device)


def _generators(of: object) -> list[torch.Generator]:
    if isinstance(of, torch.Generator):
        return [of]
    parts = [getattr(of, name, None) for name in ("generator", "sampler", "batch_sampler")]
    return [generator for part in parts if part is not None for generator in _generators(part)]


def restore_rng_state(state: RNGState, device: torch.device) -> None:
    """Restore the RNG states of this process.

    Args:
        state: What ``capture_rng_state`` returned.
        device: The device of the run. The RNG of an accelerator is left alone if the states were captured without one.
    """
    random.setstate(state["python"])
    numpy_random().set_state(state["numpy"])
    torch.default_generator.set_state(state["torch"])
    if device.type != "cpu" and "device" in state:
        torch.get_device_module(device).set_rng_state(state["device"], device)
