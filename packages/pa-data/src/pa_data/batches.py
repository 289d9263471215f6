"""Functions that describe a batch for error messages, and that build a copy of it with different values."""

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
    """Return the types, shapes, dtypes and keys of a batch or a sample as a text, without its values.

    Use it in error messages and logs to describe a batch with an unexpected structure. The values are left out, so the
    text is short and shows no data.

    Args:
        batch: Any object. Tensors and arrays are described with their shape and dtype. Lists, tuples, mappings and
            dataclasses are described with their items, up to a depth of three and up to eight items each. For any other
            object, only the name of the class is shown.

    Returns:
        The description on one line, beginning with "a" or "an"; the text ``"None"`` for None.

    Example:
        >>> import torch
        >>> from pa_data.batches import describe_batch
        >>> describe_batch({"image": torch.zeros(4, 3, 8, 8), "name": ["a", "b", "c", "d"]})
        "a dict {'image': Tensor of shape (4, 3, 8, 8) and dtype float32, 'name': list of 4 [str, str, str, str]}"
    """
    text = _describe(batch, _MAX_DEPTH)
    article = "an" if text[0] in "aeiouAEIOU" else "a"
    return text if text == "None" else f"{article} {text}"


def is_mapping(value: object) -> TypeIs[Mapping[Any, Any]]:
    """Return whether a value has items under keys, so that ``dict(value)`` and ``**value`` work.

    Use it in code that unpacks batches from any library. Some libraries have batches with ``keys`` and ``__getitem__``
    that do not derive from ``Mapping``. For these batches, ``isinstance(value, Mapping)`` is False, but this function
    returns True. Read the keys with ``keys_of``.

    Args:
        value: Any object.

    Returns:
        True for every ``collections.abc.Mapping``, and for objects whose class has ``keys`` and ``__getitem__``. Type
        checkers then treat the value as a ``Mapping``.

    Example:
        >>> from pa_data.batches import is_mapping
        >>> class Batch:
        ...     def keys(self):
        ...         return ["image"]
        ...     def __getitem__(self, key):
        ...         return 0
        >>> is_mapping(Batch()), is_mapping([0])
        (True, False)
    """
    kind = type(value)
    return isinstance(value, Mapping) or (
        callable(getattr(kind, "keys", None)) and callable(getattr(kind, "__getitem__", None))
    )


def keys_of(mapping: Mapping[Any, Any]) -> list[Any]:
    """Return the keys of an object that ``is_mapping`` recognizes.

    Use it instead of ``list(mapping)``, because some libraries have batch objects that yield something other than their
    keys, for example their samples, when you iterate over them.

    Args:
        mapping: A mapping, or any other object for which ``is_mapping`` returns True.

    Returns:
        A new list of the keys, in the order of ``mapping.keys()``.

    Raises:
        AttributeError: The object has no ``keys`` method.

    Example:
        >>> from pa_data.batches import keys_of
        >>> keys_of({"image": 0, "label": 1})
        ['image', 'label']
    """
    return list(mapping.keys())


def is_array(value: object) -> bool:
    """Return whether a value is a tensor, or an array from NumPy or a similar library.

    Use it to tell the arrays of a batch from its lists and strings, without importing each library.

    Args:
        value: Any object.

    Returns:
        True for tensors, and for objects whose class has ``shape`` and ``__array__``, such as NumPy arrays and scalars.
        False for lists and Python numbers.

    Example:
        >>> import numpy, torch
        >>> from pa_data.batches import is_array
        >>> is_array(torch.zeros(2)), is_array(numpy.zeros(2)), is_array([0, 0])
        (True, True, False)
    """
    kind = type(value)
    return isinstance(value, Tensor) or (hasattr(kind, "__array__") and hasattr(kind, "shape"))


def rebuilt_sequence(values: Sequence[Any], change: Callable[[Any], Any]) -> Any:
    """Return a list or tuple of the same class in which a function has replaced each item.

    Use it to convert a batch that is a named tuple or a subclass of ``list``, because a list comprehension would return
    a plain list, without the class and its attributes. The function is applied to the direct items only. Call
    ``map_tensors`` for the tensors at any depth, and ``rebuilt_mapping`` for mappings.

    Args:
        values: The list or tuple, which is not changed. A subclass of ``tuple`` that is not a named tuple is built by
            calling its class with the new items.
        change: A function that is called once with each item, in order, and returns the new item.

    Returns:
        The new object, or ``values`` itself if the function has returned each item itself.

    Example:
        >>> from typing import NamedTuple
        >>> from pa_data.batches import rebuilt_sequence
        >>> class Pair(NamedTuple):
        ...     image: int
        ...     label: int
        >>> rebuilt_sequence(Pair(1, 2), lambda item: item * 10)
        Pair(image=10, label=20)
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
    """Return a mapping of the same class in which a function has replaced each value.

    Use it to convert batches that libraries make as subclasses of ``dict``, because a dict comprehension would return a
    plain ``dict``. The function is applied to the direct values only. Call ``map_tensors`` for the tensors at any
    depth, and ``rebuilt_sequence`` for lists and tuples.

    Args:
        values: The mapping, which is not changed. A mutable mapping is copied with ``copy.copy``. For an immutable
            mapping, its class is called with a dictionary of the new values.
        change: A function that is called once with each value, and returns the new value.

    Returns:
        The new mapping with the same keys, or ``values`` itself if the function has returned each value itself.

    Example:
        >>> from collections import OrderedDict
        >>> from pa_data.batches import rebuilt_mapping
        >>> rebuilt_mapping(OrderedDict(image=1, label=2), lambda value: value * 10) == OrderedDict(image=10, label=20)
        True
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
    """Return the description of a value without an article."""
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
    """Return the fields of a dataclass or a named tuple, or None for other classes."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    fields: Any = getattr(kind, "_fields", None)
    return fields if issubclass(kind, tuple) else None


def _listed(names: Sequence[str], values: Iterable[Any], depth: int) -> str:
    """Return the descriptions of some values, separated by commas."""
    items = [name + _describe(value, depth - 1) for name, value in zip(names[:_MAX_ITEMS], values, strict=False)]
    return ", ".join([*items, "..."] if len(names) > _MAX_ITEMS else items)
