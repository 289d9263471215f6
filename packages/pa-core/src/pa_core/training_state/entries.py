"""Values that were read from a file of a training state, each with its path: what does not fit is named by it."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from torch import Tensor

from pa_checkpoint import CheckpointError

__all__ = ["Entry"]

_T = TypeVar("_T")
_MOST = 2**63 - 1
"""The highest count that columns of a history, and numbers of torch, can hold."""


class Entry:
    """A value in a file, of which nothing is known before one of the methods has checked it.

    Args:
        file: The file.
        path: The names that lead to the value, with dots between them; empty for the whole content.
        value: The value.

    Raises:
        CheckpointError: By each method, if the value is another one than it returns.

    Example:
        >>> Entry(Path("state.json"), "", {"run": {"updates": "ten"}}).at("run").at("updates").count()
        Traceback (most recent call last):
        ...
        pa_checkpoint.CheckpointError: The training state is damaged.
          given:    state.json: run.updates is 'ten'
          expected: a whole number of at least 0
          ...
    """

    __slots__ = ("file", "path", "value")

    def __init__(self, file: Path, path: str, value: object) -> None:
        self.file: Path = file
        self.path: str = path
        self.value: object = value

    def wrong(self, expected: str, found: str | None = None) -> CheckpointError:
        """Return the error that this value is another one than it should be.

        Args:
            expected: What it should be.
            found: What it is; by default, it is shown.
        """
        return _damage(self.file, f"{self.path or 'the content'} is {found or _shown(self.value)}", expected)

    def at(self, name: str) -> Entry:
        """Return an entry of this mapping."""
        entry = self.find(name)
        if entry is None:
            raise _damage(self.file, f"{self._path_of(name)} is missing", "an entry of that name")
        return entry

    def find(self, name: str) -> Entry | None:
        """Return an entry of this mapping, or None if there is none of that name."""
        mapping = self.mapping()
        return self._child(name, mapping[name]) if name in mapping else None

    def mapping(self) -> dict[str, object]:
        """Return a mapping whose keys are strings."""
        value = self.value
        if not isinstance(value, dict):
            raise self.wrong("a mapping")
        mapping = cast("dict[object, object]", value)
        if not all(isinstance(key, str) for key in mapping):
            raise self.wrong("a mapping whose keys are strings")
        return cast("dict[str, object]", mapping)

    def each(self, read: Callable[[Entry], _T]) -> dict[str, _T]:
        """Return a mapping whose values were read, by the names of the entries.

        Args:
            read: Reads a value.
        """
        return {name: read(self._child(name, value)) for name, value in self.mapping().items()}

    def all(self, read: Callable[[Entry], _T]) -> list[_T]:
        """Return a list whose values were read.

        Args:
            read: Reads a value.
        """
        value = self.value
        if not isinstance(value, list | tuple):
            raise self.wrong("a list")
        values = cast("list[object]", value)
        return [read(self._child(str(index), value)) for index, value in enumerate(values)]

    def one_of(self, *kinds: type[_T]) -> _T:
        """Return a value of exactly one of these types."""
        if type(self.value) not in kinds:
            raise self.wrong(" or ".join(_NAMES.get(kind, kind.__name__) for kind in kinds))
        return cast("_T", self.value)

    def text(self) -> str:
        """Return a string."""
        return self.one_of(str)

    def flag(self) -> bool:
        """Return a boolean."""
        return self.one_of(bool)

    def count(self, least: int = 0) -> int:
        """Return a whole number that can count something.

        Args:
            least: The lowest one.
        """
        if type(self.value) is not int or self.value < least:
            raise self.wrong(f"a whole number of at least {least}")
        if self.value > _MOST:
            raise self.wrong(f"a whole number of at most {_MOST}")
        return self.value

    def number(self) -> float:
        """Return a number that is finite."""
        if type(self.value) not in (int, float) or not math.isfinite(cast("float", self.value)):
            raise self.wrong("a finite number")
        return cast("float", self.value)

    def tensor(self) -> Tensor:
        """Return a tensor."""
        if not isinstance(self.value, Tensor):
            raise self.wrong("a tensor")
        return self.value

    def anything(self) -> object:
        """Return the value unchecked: only the object that it is the state of knows what it should be."""
        return self.value

    def _child(self, name: str, value: object) -> Entry:
        return Entry(self.file, self._path_of(name), value)

    def _path_of(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


_NAMES: dict[type, str] = {
    bool: "true or false",
    dict: "a mapping",
    float: "a number",
    int: "a whole number",
    list: "a list",
    str: "a string",
    tuple: "a tuple",
    type(None): "nothing",
}


def _shown(value: object) -> str:
    """Any value in a few words."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and dtype {value.dtype}"
    if isinstance(value, int) and value.bit_length() > _MOST.bit_length():
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, dict | list | tuple | set):
        kind, size = type(cast("object", value)), len(cast("list[object]", value))
        return f"{_NAMES.get(kind, f'a {kind.__name__}')} of {size} {'entry' if size == 1 else 'entries'}"
    return reprlib.repr(value)


def _damage(file: Path, found: str, expected: str) -> CheckpointError:
    return CheckpointError(
        "The training state is damaged.",
        given=f"{file}: {found}",
        expected=expected,
        do="Use another state, such as the one before it.",
    )
