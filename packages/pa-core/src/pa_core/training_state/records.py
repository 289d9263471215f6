"""Reads plain values into records: each value is compared with the annotation of its field."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, NotRequired, cast, get_args, get_origin, get_type_hints, is_typeddict

_LIMIT = 2**63  # of the whole numbers that tensors hold
_IN_WORDS = {
    NoneType: "None",
    bool: "True or False",
    Mapping: "a dictionary",
    dict: "a dictionary",
    float: "a number",
    int: "a whole number from 0 to 2**63 - 1",
    list: "a list",
    str: "a text",
}


def read_record(kind: Any, value: Any, path: str = "") -> Any:
    """Return a value as its annotation describes it.

    Whole numbers count something: they are not negative, and no flags. Fields may be missing whose default is empty.
    Entries that a record does not have are left out of a dataclass, and stay in a ``TypedDict``.

    Args:
        kind: A dataclass or a ``TypedDict``, an enumeration, any other class, or a list, a dictionary, a tuple or a
            union of these.
        value: What was read from a document.
        path: The names that lead to it.

    Raises:
        ValueError: The value, or something in it, is of another kind.

    Example:
        >>> read_record(dict[str, list[int | None]], {"steps": [3, None]})
        {'steps': [3, None]}
        >>> read_record(dict[str, list[int | None]], {"steps": [-1]})
        Traceback (most recent call last):
        ...
        ValueError: steps.0 is -1 instead of a whole number from 0 to 2**63 - 1 or None
    """
    options = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    for one in options:
        if _is_of(one, value):
            return _with_items_read(one, value, path)
    message = f"{path} is {reprlib.repr(value)} instead of {' or '.join(map(_in_words, options))}"
    raise ValueError(message.lstrip("."))


def _with_items_read(kind: Any, value: Any, path: str) -> Any:
    outer, inner = get_origin(kind) or kind, get_args(kind)
    if outer is list:
        return [read_record(inner[0], item, f"{path}.{index}") for index, item in enumerate(value)]
    if outer is tuple:
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(read_record(one, item, path) for one, item in zip(kinds, value, strict=True))
    if outer in (dict, Mapping):
        return {
            read_record(inner[0], name, f"a name in {path}"): read_record(inner[1], item, f"{path}.{name}")
            for name, item in value.items()
        }
    if _is_record(outer):
        read = _read_fields(outer, value, path)
        return {**value, **read} if is_typeddict(outer) else outer(**read)
    return outer(value) if issubclass(outer, Enum) else value


def _read_fields(kind: Any, value: dict[str, Any], path: str) -> dict[str, Any]:
    read: dict[str, Any] = {}
    defaults = set[str]() if is_typeddict(kind) else {one.name for one in fields(kind) if _is_empty(one)}
    for name, annotation in get_type_hints(kind, include_extras=True).items():
        may_be_missing = get_origin(annotation) is NotRequired
        if name in value:
            of_value = get_args(annotation)[0] if may_be_missing else annotation
            read[name] = read_record(of_value, value[name], f"{path}.{name}")
        elif not (may_be_missing or name in defaults):
            message = f"{path}.{name} is missing"
            raise ValueError(message.lstrip("."))
    return read


def _is_empty(field: Field[Any]) -> bool:
    """Whether a field is empty where it is missing; a number that is missing is not zero."""
    return field.default in (None, ()) or field.default_factory is not MISSING


def _is_of(kind: Any, value: object) -> bool:
    """Whether a value is of a kind; what is in it is looked at later."""
    outer, inner = get_origin(kind) or kind, get_args(kind)
    if outer is int:
        return type(value) is int and 0 <= value < _LIMIT
    if outer is float:
        return type(value) in (int, float)
    if outer is tuple:
        is_sequence = isinstance(value, list | tuple)
        return is_sequence and (inner[-1] is Ellipsis or len(cast("Any", value)) == len(inner))
    if _is_record(outer):
        return isinstance(value, dict)
    if outer is not Any and issubclass(outer, Enum):
        return value in [one.value for one in outer]
    return outer is Any or isinstance(value, cast("type", outer))


def _is_record(kind: Any) -> bool:
    return is_typeddict(kind) or is_dataclass(kind)


def _in_words(kind: Any) -> str:
    outer, inner = get_origin(kind) or kind, get_args(kind)
    if outer is tuple:
        return "a list" if inner[-1] is Ellipsis else f"{len(inner)} values"
    if _is_record(outer):
        return "a dictionary"
    if issubclass(outer, Enum):
        return f"one of {', '.join(one.value for one in outer)}"
    return _IN_WORDS.get(outer, f"a {outer.__name__}")
