"""Searching the code of a dataset or a sampler for the functions that it calls, without running the code."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

from torch.utils.data import DataLoader, Dataset, Sampler

_NOT_SEARCHED = frozenset(
    {
        *sys.stdlib_module_names,
        *("accelerate", "cv2", "numpy", "pandas", "PIL", "pyarrow", "scipy", "sklearn", "tokenizers", "torch"),
        *("torchvision", "transformers"),
    }
)
"""Libraries whose code is not searched: the calling script contains the names that are searched for."""

_MOST_PARTS = 2_000
_MOST_ITEMS = 1_000


def reached_from(part: object) -> Iterator[object]:
    """Iterate over the parts of an object, the functions of their classes, and the functions that these call.

    Args:
        part: A dataset or a sampler.
    """
    waiting: list[object] = [part]
    seen: dict[int, object] = {}  # kept alive, because ids of deleted objects are reused
    while waiting and len(seen) < _MOST_PARTS:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        yield value
        waiting += _called(value) if isinstance(value, FunctionType) else _held(value)


def library_of(part: object, names: Collection[str]) -> str | None:
    """Return the library that a dataset uses, judging by its code and its parts.

    Args:
        part: The dataset.
        names: The names of the libraries.

    Example:
        >>> import json
        >>> class Lines(Dataset[object]):
        ...     def __getitem__(self, index: int) -> object:
        ...         return json.loads("1")
        >>> library_of(Lines(), {"csv", "json"}), library_of(Lines(), {"csv"})
        ('json', None)
    """
    for reached in reached_from(part):
        found = {type(reached).__module__.partition(".")[0]}
        if isinstance(reached, FunctionType):
            words = words_of(reached.__code__)
            modules = (value for word in words if isinstance(value := reached.__globals__.get(word), ModuleType))
            found |= words | {module.__name__.partition(".")[0] for module in modules}
        if used := found & {*names}:
            return min(used)
    return None


def _called(function: FunctionType) -> Iterator[object]:
    """Yield the objects that a function refers to, in its module, its closure or its defaults."""
    words = words_of(function.__code__)
    for value in [function.__globals__.get(word) for word in words]:
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] not in _NOT_SEARCHED:
            yield from (
                attribute for attribute in map(vars(value).get, words) if isinstance(attribute, (FunctionType, type))
            )
        elif isinstance(value, (FunctionType, type, partial)) and not _is_of_library(cast("Any", value)):
            yield value
    with suppress(ValueError):  # a closure variable without a value yet
        yield from [cell.cell_contents for cell in function.__closure__ or ()]
    yield from function.__defaults__ or ()


def _held(value: object) -> Iterator[object]:
    """Yield the functions of a class, or the parts of an object."""
    if isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, partial):
        made = cast("partial[object]", value)
        yield from (made.func, *made.args, *made.keywords.values())
    elif isinstance(value, (list, tuple)):
        yield from cast("list[object]", value)[:_MOST_ITEMS]
    elif isinstance(value, Mapping):
        yield from list(cast("Mapping[object, object]", value).values())[:_MOST_ITEMS]
    elif isinstance(value, type):
        for kind in value.__mro__:
            if not _is_of_library(kind):
                yield from map(inspect.unwrap, filter(inspect.isfunction, vars(kind).values()))
    elif not _is_of_library(type(value)) and not isinstance(value, ModuleType):
        yield type(value)
        yield from list(getattr(value, "__dict__", {}).values())
    elif isinstance(value, Dataset | Sampler | DataLoader):
        yield from list(getattr(cast("Any", value), "__dict__", {}).values())


def _is_of_library(value: object) -> bool:
    return str(getattr(value, "__module__", None)).partition(".")[0] in _NOT_SEARCHED


def words_of(code: CodeType) -> set[str]:
    """Return the names and strings in the code of a function, and of functions within it.

    Args:
        code: The code.
    """
    found = {*code.co_names, *code.co_freevars}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= words_of(constant)
        elif isinstance(constant, str):
            found.add(constant)
    return found
