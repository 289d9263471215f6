"""Values that are stored by their place, and restored in another process."""

from __future__ import annotations

import ast
import copy
import itertools
from collections import defaultdict, deque
from enum import Enum
from types import CellType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from pa_data._state_marks import is_array, is_generator, is_plain
from pa_data.state_search import Found

__all__ = ["StoredValue", "place_of_owner"]

_MOST_NUMBERS = 65_536


class StoredValue(NamedTuple):
    """The stored form of a piece of state.

    Attributes:
        owner: The place of the holder of the value.
        name: The attribute or key of the value in the holder.
        kind: The meaning of ``value``.
        value: Plain values, tensors or an array.
    """

    owner: str
    name: Any
    kind: str
    value: Any

    @classmethod
    def of(cls, found: Found) -> StoredValue | None:
        """Return the stored form of a piece of state, or None if it cannot be stored.

        Args:
            found: The piece of state.
        """
        packed = _pack(found)
        if packed is None or isinstance(found.owner, tuple | set | frozenset):
            return None
        return cls(place_of_owner(found), found.name, *packed)

    def put_back(self, owner: object, found: Found | None) -> bool:
        """Restore the value.

        Args:
            owner: The holder of the value in this process.
            found: The piece of state at its place, or None.

        Returns:
            Whether there was a place for the value.
        """
        present = None if found is None else found.value
        if self.kind == "generator":
            return found is not None and is_generator(found.value) and _set_state(found, self.value)
        if self.kind == "enum":
            kind: Any = type(present)
            return isinstance(present, Enum) and self.value in kind.__members__ and self._set(owner, kind[self.value])
        if self.kind == "defaultdict" and not isinstance(present, defaultdict):
            return False
        if self.kind == "tensor":
            return isinstance(present, Tensor) and self._set(owner, self.value.to(present.device))
        value = _unpack(self.kind, self.value)
        if cast("Any", present).__class__ is value.__class__ and _fill(present, value):
            return True
        return self._set(owner, value)

    def _set(self, owner: Any, value: object) -> bool:
        kind = cast("type[object]", type(owner))
        if kind is CellType:
            owner.cell_contents = value
        elif issubclass(kind, dict | list | deque):
            if not issubclass(kind, dict) and not self.name < len(owner):
                return False
            owner[self.name] = value
        else:
            object.__setattr__(owner, self.name, value)  # no code of the script
        return True


def place_of_owner(found: Found) -> str:
    """Return the place of the holder of a piece of state.

    Args:
        found: The piece of state.

    Example:
        >>> place_of_owner(Found("trainer.counts['a']", {}, "a", 1))
        'trainer.counts'
    """
    for suffix in (f".{found.name}", f"[{found.name!r}]"):
        if found.place.endswith(suffix):
            return found.place.removesuffix(suffix)
    return found.place


def _pack(found: Found) -> tuple[str, Any] | None:
    value: Any = found.value
    packed: tuple[str, Any] | None = None
    if isinstance(value, Enum):
        packed = "enum", value.name
    elif is_generator(value):
        packed = "generator", copy.deepcopy(found.generator_state)
    elif isinstance(value, itertools.count):
        packed = "count", [*ast.literal_eval(repr(cast("object", value)).removeprefix("count").replace(")", ",)"))]
    elif is_array(value):
        if value.size <= _MOST_NUMBERS and not value.dtype.hasobject:
            packed = "number" if value.shape == () else "array", copy.deepcopy(value[...])
    elif isinstance(value, Tensor):
        if _is_small(value):
            packed = "tensor", value.detach().to("cpu", copy=True)
    elif is_plain(value):
        packed = _pack_plain(value)
    return packed


def _is_small(tensor: Tensor) -> bool:
    is_dense = type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.is_nested
    return is_dense and not tensor.is_meta and tensor.numel() <= _MOST_NUMBERS


def _pack_plain(value: Any) -> tuple[str, Any]:
    kind = cast("type[object]", type(value))
    if kind is deque:
        return "deque", [[*value], value.maxlen]
    if kind is frozenset:
        return "frozenset", {*value}
    if kind is defaultdict:
        return "defaultdict", copy.deepcopy({**value})
    return "plain", copy.deepcopy(value)


def _unpack(kind: str, value: Any) -> Any:
    if kind == "number":
        return value[()]
    if kind == "count":
        return itertools.count(*value)
    if kind == "deque":
        return deque[Any](*value)
    if kind == "frozenset":
        return frozenset(value)
    if kind == "defaultdict":
        return defaultdict(None, value)
    return value


def _set_state(found: Found, state: object) -> bool:
    try:
        found.set_generator_state(state)
    except (KeyError, RuntimeError, TypeError, ValueError):  # of another kind
        return False
    return True


def _fill(container: Any, value: Any) -> bool:
    """Give a container the items of a container of the same class, since other objects may refer to it."""
    if hasattr(container, "update"):  # a mapping or a set
        container.clear()
        container.update(value)
    elif hasattr(container, "extend"):  # a list or a deque
        container.clear()
        container.extend(value)
    elif hasattr(container, "dtype") and container.shape == value.shape != () and container.dtype == value.dtype:
        container[...] = value
    else:
        return False
    return True
