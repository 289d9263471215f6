"""The identity of an order: its name, and a digest of its parameters."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePath
from typing import Any, cast

import torch
from torch import Tensor

__all__ = ["fingerprint"]

_DIGITS = 12
_PLAIN = (bool, int, float, str, bytes, type(None))


def fingerprint(name: str, parameters: Mapping[str, object]) -> str:
    """Return a name, with a digest of the parameters if there are any.

    The result is the same in every process and on every machine, unlike the ``repr`` of objects, which may contain
    addresses.

    Args:
        name: The versioned name of an order.
        parameters: The parameters of the order, by name.

    Raises:
        TypeError: A parameter is an object of an unsupported class.

    Example:
        >>> fingerprint("sequential-v1", {})
        'sequential-v1'
        >>> fingerprint("mine-v1", {"weights": torch.ones(3)}) == fingerprint("mine-v1", {"weights": torch.ones(3)})
        True
    """
    if not parameters:
        return name
    whole = hashlib.sha256()
    for key, value in sorted(parameters.items()):
        for part in (*_bytes_of(key, key), *_bytes_of(value, f"{name}: {key}")):
            whole.update(part)
    return f"{name} {whole.hexdigest()[:_DIGITS]}"


def _bytes_of(value: object, place: str) -> Iterator[bytes | memoryview]:
    """Yield a value with its kind and its length, so that different values have different bytes."""
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, Tensor) or hasattr(value, "__array__"):
        yield from _bytes_of_tensor(value, place)
    elif isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value)
        yield f"mapping {len(entries)};".encode()
        for key in sorted(entries, key=repr):
            yield from _bytes_of(key, place)
            yield from _bytes_of(entries[key], place)
    elif isinstance(value, (list, tuple, range, set, frozenset)):
        yield from _bytes_of_items(cast("Collection[object]", value), place)
    elif isinstance(value, (*_PLAIN, PurePath, torch.dtype)):
        text = str(value) if isinstance(value, PurePath) else repr(value)
        yield f"{len(text)}:{text};".encode()
    elif callable(value) and isinstance(name := getattr(value, "__qualname__", None), str):
        yield f"{value.__module__}.{name};".encode()
    else:
        raise _untold(f"a {type(value).__name__} as a parameter of {place}")


def _bytes_of_items(items: Collection[object], place: str) -> Iterator[bytes | memoryview]:
    """Yield the items of a collection."""
    is_set = isinstance(items, (set, frozenset))
    in_order = sorted(items, key=repr) if is_set else list(items)
    yield f"{'set' if is_set else 'items'} {len(in_order)};".encode()
    if set(map(type, in_order)) <= set(_PLAIN):
        yield repr(in_order).encode()  # long lists of numbers are common
        return
    for item in in_order:
        yield from _bytes_of(item, place)


def _bytes_of_tensor(value: Any, place: str) -> Iterator[bytes | memoryview]:
    """Yield the type, shape and elements of a tensor or an array."""
    try:
        tensor = torch.as_tensor(value).detach().cpu().contiguous()
    except (TypeError, ValueError, RuntimeError) as error:
        raise _untold(f"a {type(value).__name__} that no tensor can be made of, in {place}") from error
    yield f"tensor {tensor.dtype} {tuple(tensor.shape)};".encode()
    flat = tensor.as_strided((tensor.numel(),), (1,))  # strides of dimensions of one element vary
    yield flat.view(torch.uint8).numpy().data


def _untold(given: str) -> TypeError:
    """Return the error for a parameter without a digest."""
    return TypeError(
        f"The identity of an order cannot be told from one of its parameters. Got {given}. Override parameters() to "
        "return tensors, numbers, strings, functions, and lists and dictionaries of them."
    )
