"""Describing what a loader yields: types, shapes, dtypes and keys, for error messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor
from typing_extensions import TypeIs

__all__ = ["describe_batch", "is_array", "is_mapping", "keys_of"]

_MAX_DEPTH = 3
_MAX_ITEMS = 8


def describe_batch(batch: object) -> str:
    """Return the types, shapes, dtypes and keys of a batch or a sample, without its values.

    Example:
        >>> import torch
        >>> describe_batch({"image": torch.zeros(4, 3, 8, 8), "name": ["a", "b", "c", "d"]})
        "a dict {'image': Tensor of shape (4, 3, 8, 8) and dtype float32, 'name': list of 4 [str, str, str, str]}"
    """
    text = _describe(batch, _MAX_DEPTH)
    article = "an" if text[0] in "aeiouAEIOU" else "a"
    return text if text == "None" else f"{article} {text}"


def is_mapping(value: object) -> TypeIs[Mapping[Any, Any]]:
    """Whether a value has items under keys: a mapping, or what ``dict()`` and ``**`` take for one."""
    kind = type(value)
    return isinstance(value, Mapping) or (
        callable(getattr(kind, "keys", None)) and callable(getattr(kind, "__getitem__", None))
    )


def keys_of(mapping: Mapping[Any, Any]) -> list[Any]:
    """Return the keys of what ``is_mapping``; iterating over it may give something else."""
    return list(mapping.keys())


def is_array(value: object) -> bool:
    """Whether a value is a tensor, or an array of another library such as NumPy."""
    kind = type(value)
    return isinstance(value, Tensor) or (hasattr(kind, "__array__") and hasattr(kind, "shape"))


def _describe(value: Any, depth: int) -> str:
    name = type(value).__name__
    if is_array(value) and not is_mapping(value):
        dtype = str(getattr(value, "dtype", "unknown")).removeprefix("torch.")
        return f"{name} of shape {tuple(value.shape)} and dtype {dtype}"
    if is_mapping(value):
        keys = keys_of(value)
        return f"{name} {{{_shortened((_item(key, value[key], depth) for key in keys[:_MAX_ITEMS]), len(keys))}}}"
    names = _names_of_fields(value)
    if names is not None:
        fields = (f"{field}={_nested(getattr(value, field), depth)}" for field in names[:_MAX_ITEMS])
        return f"{name}({_shortened(fields, len(names))})"
    return _describe_sequence(name, value, depth) if issubclass(type(value), (list, tuple)) else name


def _names_of_fields(value: Any) -> list[str] | None:
    """The fields of a dataclass or a named tuple."""
    kind: type[Any] = value.__class__
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    fields: Any = getattr(kind, "_fields", None)
    return list(fields) if issubclass(kind, tuple) and fields is not None else None


def _describe_sequence(name: str, values: Sequence[Any], depth: int) -> str:
    items = (_nested(one, depth) for one in values[:_MAX_ITEMS])
    return f"{name} of {len(values)} [{_shortened(items, len(values))}]"


def _item(key: object, value: object, depth: int) -> str:
    return f"{key!r}: {_nested(value, depth)}"


def _nested(value: object, depth: int) -> str:
    return _describe(value, depth - 1) if depth > 0 else type(value).__name__


def _shortened(items: Iterable[str], number: int) -> str:
    shown = ", ".join(items)
    return f"{shown}, ..." if number > _MAX_ITEMS else shown
