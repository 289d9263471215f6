"""Keys for random numbers, and functions that seed, save and restore the random number generators of a process.

Seeding all generators takes 6 to 12 microseconds. Saving and restoring them takes eight times as long, so loaders do it
once for each batch.
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
"""The states of the random number generators of a process, by name."""

_MASK_64 = 0xFFFF_FFFF_FFFF_FFFF
_GOLDEN_GAMMA = 0x9E37_79B9_7F4A_7C15
_MULTIPLIER_1 = 0xBF58_476D_1CE4_E5B9
_MULTIPLIER_2 = 0x94D0_49BB_1331_11EB


def extend_key(key: int, value: int) -> int:
    """Mix another integer into a 64-bit key.

    Use it to derive many keys from a key, for example a key for each sample from the key of an epoch. For a fixed key,
    different values always give different results. The function is the splitmix64 finaliser (Steele, Lea and Flood,
    "Fast splittable pseudorandom number generators", 2014) of ``(key ^ value) + 0x9E3779B97F4A7C15``. It will never
    change, since saved states rely on it.

    Args:
        key: A key that ``mix`` or ``extend_key`` has returned.
        value: Any integer; it is taken modulo 2**64.

    Returns:
        An integer in ``[0, 2**64)``.

    Example:
        >>> key_of_epoch = mix(0, 3)
        >>> keys_of_samples = [extend_key(key_of_epoch, index) for index in range(1000)]
        >>> len(set(keys_of_samples))
        1000
    """
    mixed = ((key ^ (value & _MASK_64)) + _GOLDEN_GAMMA) & _MASK_64
    mixed = ((mixed ^ (mixed >> 30)) * _MULTIPLIER_1) & _MASK_64
    mixed = ((mixed ^ (mixed >> 27)) * _MULTIPLIER_2) & _MASK_64
    return mixed ^ (mixed >> 31)


def mix(*values: int) -> int:
    """Turn several integers, for example a seed, an epoch and a sample index, into a 64-bit key.

    Pass the key to ``seed_rng``. Seeding with a sum such as ``seed + epoch`` gives the same random numbers for many
    pairs. The result of this function differs for different values, except with a probability of about 2**-64, and
    depends on their order. ``mix(a, b, c)`` equals ``extend_key(mix(a, b), c)``.

    Args:
        values: Any integers; each is taken modulo 2**64.

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
"""By class, the generators that no block is using."""


def seed_rng(key: int, *more: int, device: torch.device | None = None) -> None:
    """Seed the global random number generators of Python, NumPy and torch.

    Use it with a key from ``mix`` to make the augmentation of a sample depend only on the seed, the epoch and the
    sample. Custom generators, for example ``numpy.random.default_rng()``, are not seeded.

    Do not pass a small number: NumPy is seeded with the upper 32 bits of the key, which are 0 for 1, 2 and 42, so all
    of these give the same numbers in NumPy. Pass ``mix(seed)``, whose bits all depend on the seed.

    Args:
        key: A 64-bit key that ``mix`` or ``extend_key`` has returned, for example ``mix(seed, epoch, index)``: an
            integer from 0 to 2**64 - 1.
        *more: Integers that extend the key, as ``extend_key`` does. By default there are none.
        device: An accelerator whose generator is seeded, too. By default only the CPU is.

    Raises:
        ValueError: The key is negative, or 2**64 or larger.

    Example:
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
    """Restore the global random number generators of Python, NumPy and torch when the block ends.

    Use it around code that seeds the generators, such as the augmentation of a sample, so that it does not affect the
    random numbers of training. Call ``seed_rng`` first in the block: until then the state of the generators is
    undefined. NumPy uses a different generator within the block, since restoring its own would take as long as all the
    rest. If your code must continue the present random numbers, use ``restored_rng_states``.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> expected = torch.rand(2)[1]
        >>> _ = torch.manual_seed(0), torch.rand(1)
        >>> with preserve_rng_state():
        ...     seed_rng(mix(0, 3, 12))
        ...     noise = torch.rand(8)
        >>> bool(torch.rand(1) == expected)
        True
    """
    random_of_numpy = numpy_random()
    of_python, of_torch = random.getstate(), torch.default_generator.get_state()
    of_numpy = random_of_numpy.get_state(legacy=False)
    generator: object = random_of_numpy.get_bit_generator()
    # Of the same class, which the user may have chosen: workers, where nothing is restored, draw from it.
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
    """Return the module ``numpy.random``, which is imported at the first call.

    Importing it takes some milliseconds, which a script that draws no random numbers can avoid.

    Returns:
        The module.

    Example:
        >>> numpy_random().seed(0)
        >>> float(numpy_random().rand()) < 1
        True
    """
    return importlib.import_module("numpy.random")


def capture_rng_state(device: torch.device) -> RNGState:
    """Return the states of the global random number generators of Python, NumPy and torch.

    Save the result in a checkpoint, and pass it to ``restore_rng_state`` when the run resumes, so that dropout and
    augmentation continue with the same random numbers.

    Args:
        device: The device of the run. If it is an accelerator, the state of its generator is included.

    Returns:
        A dictionary with the entries ``"python"``, ``"numpy"``, ``"torch"`` and, for an accelerator, ``"device"``.

    Example:
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
    """Restore all random number generators when the block ends, including the generators of some data loaders.

    Use it around work that must not affect the training, for example an evaluation during training.
    Unlike ``preserve_rng_state``, the code in the block continues from the present states, and may draw at once. It
    also covers accelerators and loaders, and is slower.

    Args:
        device: The device of the run. If it is an accelerator, its generator is restored, too.
        loaders: Data loaders, samplers or generators whose generators are restored. By default there are none.

    Example:
        >>> with restored_rng_states(torch.device("cpu")):
        ...     first = torch.rand(1)
        >>> bool(torch.rand(1) == first)
        True
    """
    state = capture_rng_state(device)
    generators = [(generator, generator.get_state()) for loader in loaders for generator in _generators(loader)]
    try:
        yield
    finally:
        for generator, before in generators:
            generator.set_state(before)
        restore_rng_state(state, device)


def _generators(of: object) -> list[torch.Generator]:
    """Return the generators of a loader and of its samplers."""
    if isinstance(of, torch.Generator):
        return [of]
    parts = [getattr(of, name, None) for name in ("generator", "sampler", "batch_sampler")]
    return [generator for part in parts if part is not None for generator in _generators(part)]


def restore_rng_state(state: RNGState, device: torch.device) -> None:
    """Set the global random number generators to captured states.

    Call it when a run resumes, or use ``restored_rng_states`` for a block of code.

    Args:
        state: The result of ``capture_rng_state``.
        device: The device of the run. The generator of an accelerator keeps its state if the states were captured
            without an accelerator.

    Example:
        >>> state = capture_rng_state(torch.device("cpu"))
        >>> first = random.random()
        >>> restore_rng_state(state, torch.device("cpu"))
        >>> random.random() == first
        True
    """
    random.setstate(state["python"])
    numpy_random().set_state(state["numpy"])
    torch.default_generator.set_state(state["torch"])
    if device.type != "cpu" and "device" in state:
        torch.get_device_module(device).set_rng_state(state["device"], device)
