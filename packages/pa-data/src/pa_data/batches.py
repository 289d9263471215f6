"""Describing what a loader yields, for error messages, and rebuilding it with other values."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, cast

from torch import Tensor
from typing_extensions import TypeIs

__all__ = ["describe_batch", "is_array", "is_mapping", "keys_of", "rebuilt_mapping", "rebuilt_sequence"]

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


def rebuilt_sequence(values: Sequence[Any], change: Callable[[Any], Any]) -> Any:
    """Return a list or tuple of the same class with changed items, or itself if none of them changes.

    Args:
        values: The list or tuple, perhaps a named one.
        change: Called with each item.
    """
    changed = [change(value) for value in values]
    if all(new is old for new, old in zip(changed, values, strict=True)):
        return values
    if isinstance(values, list):
        clone = copy.copy(values)
        clone[:] = changed
        return clone
    constructor: Any = type(values)
    return constructor(*changed) if hasattr(values, "_fields") else constructor(changed)


def rebuilt_mapping(values: Mapping[Any, Any], change: Callable[[Any], Any]) -> Any:
    """Return a mapping of the same class with changed values, or itself if none of them changes.

    Args:
        values: The mapping.
        change: Called with each value.
    """
    changed = {key: change(value) for key, value in values.items()}
    if all(changed[key] is value for key, value in values.items()):
        return values
    if isinstance(values, MutableMapping):
        clone = copy.copy(values)
        clone.update(changed)
        return clone
    constructor = cast("Callable[[dict[Any, Any]], Any]", type(values))
    return constructor(changed)


def _describe(value: Any, depth: int) -> str:
    kind: type[Any] = value.__class__
    if depth < 0:
        return kind.__name__
    if is_array(value) and not is_mapping(value):
        dtype = str(getattr(value, "dtype", "unknown")).removeprefix("torch.")
        return f"{kind.__name__} of shape {tuple(value.shape)} and dtype {dtype}"
    if is_mapping(value):
        keys = keys_of(value)
        return f"{kind.__name__} {{{_listed([f'{key!r}: ' for key in keys], (value[key] for key in keys), depth)}}}"
    if (names := _names_of_fields(kind)) is not None:
        return f"{kind.__name__}({_listed([f'{name}=' for name in names], (getattr(value, n) for n in names), depth)})"
    if issubclass(kind, (list, tuple)):
        return f"{kind.__name__} of {len(value)} [{_listed([''] * len(value), value, depth)}]"
    return kind.__name__


def _names_of_fields(kind: type[Any]) -> Sequence[str] | None:
    """The fields of a dataclass or a named tuple."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    fields: Any = getattr(kind, "_fields", None)
    return fields if issubclass(kind, tuple) else None


def _listed(names: Sequence[str], values: Iterable[Any], depth: int) -> str:
    items = [name + _describe(value, depth - 1) for name, value in zip(names[:_MAX_ITEMS], values, strict=False)]
    return ", ".join([*items, "..."] if len(names) > _MAX_ITEMS else items)
