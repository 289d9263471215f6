"""What a run ended with, and the first thing in which two runs differ."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

__all__ = ["Result", "first_difference", "result_of"]

Result: TypeAlias = dict[str, str]
"""By the name of each tensor and number, such as "weights.last.bias": every bit of it, as a digest or in words."""


def result_of(parts: Mapping[str, object]) -> Result:
    """Return what a run ended with, in the order of its parts."""
    return {".".join(names): text for names, text in _entries(parts, ())}


def _entries(value: object, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, Tensor):
        yield names, _digest(value.detach())
    elif isinstance(value, Mapping):
        for key, item in cast("Mapping[Any, object]", value).items():
            yield from _entries(item, (*names, str(key)))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for number, item in enumerate(cast("Sequence[object]", value)):
            yield from _entries(item, (*names, str(number)))
    else:
        yield names, repr(value)


def _digest(tensor: Tensor) -> str:
    """Every bit, and the sum: it tells a rounding from a mistake."""
    bits = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    digest = hashlib.sha256(bits).hexdigest()[:16]
    return f"{tuple(tensor.shape)} {tensor.dtype} {digest}, sum {tensor.double().sum().item()!r}"


def first_difference(result: Result, expected: Result) -> str | None:
    """Say what is the first thing that is not as expected, None if everything is."""
    for name in (*expected, *result):
        if result.get(name) != expected.get(name):
            return f"{name} is {result.get(name)}, not {expected.get(name)}"
    return None
