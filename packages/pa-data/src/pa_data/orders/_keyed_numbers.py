"""Random numbers by key and position: the keys of ``pa_data.rng`` for whole tensors."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["as_int64", "extend_keys", "uniform"]

_GOLDEN_GAMMA = 0x9E37_79B9_7F4A_7C15  # of splitmix64, as in pa_data.rng
_MULTIPLIER_1 = 0xBF58_476D_1CE4_E5B9
_MULTIPLIER_2 = 0x94D0_49BB_1331_11EB
_MANTISSA_BITS = 53


def as_int64(value: int) -> int:
    """Reinterpret 64 unsigned bits as the signed integer that a torch operation accepts."""
    return value - (1 << 64) if value >= 1 << 63 else value


def extend_keys(keys: Tensor | int, values: Tensor) -> Tensor:
    """Apply ``pa_data.rng.extend_key`` to each element.

    Args:
        keys: A key, or a key for each value as its 64 bits in int64.
        values: The integers to mix in, as int64.

    Returns:
        The new keys, each as its 64 bits in int64.

    Example:
        >>> from pa_data.rng import extend_key
        >>> [key % 2**64 for key in extend_keys(7, torch.tensor([3, -1])).tolist()] == [
        ...     extend_key(7, 3),
        ...     extend_key(7, -1),
        ... ]
        True
    """
    mixed = (values ^ (as_int64(keys) if isinstance(keys, int) else keys)) + as_int64(_GOLDEN_GAMMA)
    mixed = (mixed ^ _shifted_right(mixed, 30)) * as_int64(_MULTIPLIER_1)
    mixed = (mixed ^ _shifted_right(mixed, 27)) * as_int64(_MULTIPLIER_2)
    return mixed ^ _shifted_right(mixed, 31)


def uniform(key: int, start: int, stop: int) -> Tensor:
    """Return random numbers for the positions ``[start, stop)``, each a function of the key and the position.

    Args:
        key: A key from ``pa_data.rng``.
        start: The first position.
        stop: The position after the last.

    Returns:
        Numbers in ``[0, 1)`` with 53 random bits each, as float64.
    """
    bits = _shifted_right(extend_keys(key, torch.arange(start, stop)), 64 - _MANTISSA_BITS)
    return bits.to(torch.float64) * 2.0**-_MANTISSA_BITS


def _shifted_right(values: Tensor, bits: int) -> Tensor:
    """Shift 64 unsigned bits, where torch would repeat the sign."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)
