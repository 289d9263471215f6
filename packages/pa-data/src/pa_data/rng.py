"""Keys for random numbers, and functions that seed, save and restore the random number generators of a process.

Seeding all generators takes 6 to 12 microseconds. Saving and restoring them takes eight times as long, so loaders do it
once for each batch.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager, nullcontext
from functools import cache
from types import ModuleType
from typing import Any, TypeAlias, cast

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
"""The states of the global random number generators of a process, as ``capture_rng_state`` returns them.

A dictionary with the entries ``"python"`` (the tuple of ``random.getstate()``), ``"numpy"`` (the tuple of
``numpy.random.get_state()``), ``"torch"`` (a tensor of uint8) and, for an accelerator, ``"device"`` (a tensor of
uint8). Pass it to ``restore_rng_state``. ``torch.save`` writes it; read it with ``torch.load(path,
weights_only=False)``, since it contains a NumPy array.

Example:
    >>> import torch
    >>> from pa_data.rng import RNGState, capture_rng_state, restore_rng_state
    >>> state: RNGState = capture_rng_state(torch.device("cpu"))
    >>> first = torch.rand(1)
    >>> restore_rng_state(state, torch.device("cpu"))
    >>> bool(torch.rand(1) == first)
    True
"""

_MASK_64 = 0xFFFF_FFFF_FFFF_FFFF
_GOLDEN_GAMMA = 0x9E37_79B9_7F4A_7C15
_MULTIPLIER_1 = 0xBF58_476D_1CE4_E5B9
_MULTIPLIER_2 = 0x94D0_49BB_1331_11EB


def extend_key(key: int, value: int) -> int:
    """Mix another integer into a 64-bit key.

    Use it to derive many keys from a key, for example a key for each sample from the key of an epoch. To turn the
    integers themselves into a key, call ``mix``. For a fixed key, different values modulo 2**64 always give different
    results. The function is the splitmix64 finalizer (Steele, Lea and Flood, "Fast splittable pseudorandom number
    generators", 2014) of ``(key ^ value) + 0x9E3779B97F4A7C15``. It will never change, since saved states rely on it.

    Args:
        key: A key that ``mix`` or ``extend_key`` has returned.
        value: Any integer, which may be negative; it is taken modulo 2**64.

    Returns:
        The new key, an integer in ``[0, 2**64)``. Pass it to ``seed_rng``.

    Example:
        >>> from pa_data.rng import extend_key, mix
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

    Use it to seed a generator from several numbers: pass the key to ``seed_rng``, or to
    ``torch.Generator().manual_seed``. Seeding with a sum such as ``seed + epoch`` would give the same random numbers
    for many pairs. The result of this function differs for different values, except with a probability of about 2**-64,
    and depends on their order. ``mix(a, b, c)`` equals ``extend_key(mix(a, b), c)``. The function will never change,
    since saved states rely on it.

    Args:
        values: Any integers, which may be negative; each is taken modulo 2**64.

    Returns:
        The key, an integer in ``[0, 2**64)``; 0 without values.

    Example:
        >>> from pa_data.rng import extend_key, mix
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

    Use it with a key from ``mix``, to make the augmentation of a sample depend only on the seed, the epoch and the
    sample. ``KeyedDataLoader`` does so for each sample; in your own loader, call it within ``preserve_rng_state()``. A
    call takes about 10 microseconds. Custom generators, for example ``numpy.random.default_rng()``, are not seeded.

    Do not pass a small number, because NumPy is seeded with the upper 32 bits of the key, which are 0 for 1, 2 and 42,
    so all of these give the same numbers in NumPy. Pass ``mix(seed)``, whose bits all depend on the seed.

    Args:
        key: A 64-bit key that ``mix`` or ``extend_key`` has returned, for example ``mix(seed, epoch, index)``: an
            integer from 0 to 2**64 - 1.
        *more: Integers that extend the key, as ``extend_key`` does. By default there are none.
        device: An accelerator whose generator is seeded, too, for example ``torch.device("cuda", 1)``; without an
            index, the current device of that kind. By default only the CPU is seeded, since samples are read there.

    Raises:
        ValueError: The key is negative, or 2**64 or larger.

    Example:
        >>> import random
        >>> import torch
        >>> from pa_data.rng import mix, seed_rng
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
    numpy_random().seed(numpy_seed(key))
    if device is not None and device.type != "cpu":
        module = torch.get_device_module(device)
        index = cast("int | None", device.index)
        # Not every kind of accelerator can have several devices.
        with module.device(index) if index is not None and hasattr(module, "device") else nullcontext():
            module.manual_seed(key)


def numpy_seed(key: int) -> int:
    """Return the seed of NumPy's generator for a key.

    NumPy and torch expand 32 bits into the same Mersenne twister. Torch takes the key's lower half, so NumPy gets the
    upper half.
    """
    return key >> 32


@contextmanager
def preserve_rng_state() -> Generator[None]:
    """Restore the global random number generators of Python, NumPy and torch when the block ends.

    Use this context manager around code that seeds the generators, for example the augmentation of a sample, so that
    the code does not affect the random numbers of training. Call ``seed_rng`` first in the block, because until then
    the state of the generators is undefined. NumPy uses a different generator within the block, since restoring its own
    generator would take as long as everything else. The block costs about 50 microseconds, so put it around a batch,
    not around each sample. The states are also restored if the block raises an error. Generators of accelerators are
    not included.

    If your code must continue with the current random numbers, or uses an accelerator, use ``restored_rng_states``.

    Example:
        >>> import torch
        >>> from pa_data.rng import mix, preserve_rng_state, seed_rng
        >>> _ = torch.manual_seed(0)
        >>> expected = torch.rand(2)[1]
        >>> _ = torch.manual_seed(0), torch.rand(1)
        >>> with preserve_rng_state():
        ...     seed_rng(mix(0, 3, 12))
        ...     noise = torch.rand(8)
        >>> bool(torch.rand(1) == expected)
        True
    """
    of_python, of_torch = random.getstate(), torch.default_generator.get_state()
    try:
        with _preserved_numpy() if is_numpy_random_imported() else _fresh_numpy():
            yield
    finally:
        random.setstate(of_python)
        torch.default_generator.set_state(of_torch)


@contextmanager
def _preserved_numpy() -> Generator[None]:
    random_of_numpy = numpy_random()
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
        random_of_numpy.set_bit_generator(generator)
        others.append(other)
        # Numpy makes normal numbers in pairs; the second one is kept beside the generator, and was lost.
        if of_numpy["has_gauss"]:
            random_of_numpy.set_state(of_numpy)


@contextmanager
def _fresh_numpy() -> Generator[None]:
    """Let NumPy's generator begin with a random seed, as after an import, if it is imported in the block."""
    try:
        yield
    finally:
        if is_numpy_random_imported():
            numpy_random().seed()


def is_numpy_random_imported() -> bool:
    """Return whether ``numpy.random`` is imported; if it is not, nothing has drawn from its generator."""
    return "numpy.random" in sys.modules


@cache
def numpy_random() -> ModuleType:
    """Return the ``numpy.random`` module, which is imported at the first call.

    Use it in a module that only sometimes draws random numbers. Importing ``numpy.random`` takes some milliseconds, so
    scripts that draw no random numbers start faster.

    Returns:
        The module, the same object as after ``import numpy.random``.

    Example:
        >>> from pa_data.rng import numpy_random
        >>> numpy_random().seed(0)
        >>> float(numpy_random().rand()) < 1
        True
    """
    return importlib.import_module("numpy.random")


def capture_rng_state(device: torch.device) -> RNGState:
    """Return the states of the global random number generators of Python, NumPy and torch.

    Call it when you save a checkpoint, on each process, and pass the result to ``restore_rng_state`` when the run
    resumes, so that dropout and augmentation continue with the same random numbers. For a block of code that must not
    affect the random numbers, use ``restored_rng_states``. The generators themselves are not changed.

    Args:
        device: The device on which this process computes. If it is an accelerator, for example ``torch.device("cuda",
            1)``, the state of its generator is included.

    Returns:
        A dictionary with the entries ``"python"``, ``"numpy"``, ``"torch"`` and, for an accelerator, ``"device"``.
        ``torch.save`` writes it; read it with ``torch.load(path, weights_only=False)``, since it contains a NumPy
        array.

    Example:
        >>> import torch
        >>> from pa_data.rng import capture_rng_state, restore_rng_state
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

    These are the global generators of Python's ``random``, NumPy and torch (CPU), and the generator of ``device`` if it
    is an accelerator. Use this context manager around work that must not affect the training, for example an evaluation
    during training. The block starts with the current states of the generators, so it draws the same numbers as the
    code after it. Around code that first seeds the generators, for example in each batch, use ``preserve_rng_state``:
    it is faster, but covers neither accelerators nor loaders. The states are also restored if the block raises an
    error.

    Args:
        device: The device on which this process computes. If it is an accelerator, its generator is restored, too.
        loaders: Data loaders, samplers or ``torch.Generator`` objects. The ``torch.Generator`` that a loader or one of
            its samplers has as ``generator`` is restored, too. By default there are none.

    Example:
        >>> import torch
        >>> from pa_data.rng import restored_rng_states
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

    Call it when a run resumes, before the next batch, and after the model has been created, because creating a model
    draws random numbers. For a block of code, use ``restored_rng_states``.

    Args:
        state: The result of ``capture_rng_state``, on this process or in an earlier run.
        device: The device on which this process computes. The generator of an accelerator keeps its current state if
            the states were captured without an accelerator.

    Raises:
        KeyError: ``state`` lacks the entry ``"python"``, ``"numpy"`` or ``"torch"``.

    Example:
        >>> import random
        >>> import torch
        >>> from pa_data.rng import capture_rng_state, restore_rng_state
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
