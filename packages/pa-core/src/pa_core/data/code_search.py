"""A search of the code of a dataset or a sampler for what it calls; nothing of it is run."""

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
"""Libraries in whose code nothing is looked for: the script that calls them names what it wants of them."""

_MOST_PARTS = 2_000
_MOST_ITEMS = 1_000


def reached_from(part: object) -> Iterator[object]:
    """Iterate over the objects that something consists of, the functions of their classes, and those that these call.

    Args:
        part: A dataset or a sampler.
    """
    waiting: list[object] = [part]
    seen: dict[int, object] = {}  # kept: an id is given to another object without them
    while waiting and len(seen) < _MOST_PARTS:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        yield one
        waiting += _called(one) if isinstance(one, FunctionType) else _held(one)


def library_of(part: object, names: Collection[str]) -> str | None:
    """Return the library, of some, that a dataset uses as far as its code and what it holds show.

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
    for one in reached_from(part):
        found = {type(one).__module__.partition(".")[0]}
        if isinstance(one, FunctionType):
            words = words_of(one.__code__)
            modules = (value for word in words if isinstance(value := one.__globals__.get(word), ModuleType))
            found |= words | {module.__name__.partition(".")[0] for module in modules}
        if used := found & {*names}:
            return min(used)
    return None


def _called(function: FunctionType) -> Iterator[object]:
    """What a function refers to, in its module, its closure or its defaults."""
    words = words_of(function.__code__)
    for value in [function.__globals__.get(word) for word in words]:
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] not in _NOT_SEARCHED:
            yield from (one for one in map(vars(value).get, words) if isinstance(one, (FunctionType, type)))
        elif isinstance(value, (FunctionType, type, partial)) and not _is_of_library(cast("Any", value)):
            yield value
    with suppress(ValueError):  # a name that has no value yet
        yield from [cell.cell_contents for cell in function.__closure__ or ()]
    yield from function.__defaults__ or ()


def _held(one: object) -> Iterator[object]:
    """The functions of a class, and what an object consists of."""
    if isinstance(one, MethodType):
        yield from (one.__func__, one.__self__)
    elif isinstance(one, partial):
        made = cast("partial[object]", one)
        yield from (made.func, *made.args, *made.keywords.values())
    elif isinstance(one, (list, tuple)):
        yield from cast("list[object]", one)[:_MOST_ITEMS]
    elif isinstance(one, Mapping):
        yield from list(cast("Mapping[object, object]", one).values())[:_MOST_ITEMS]
    elif isinstance(one, type):
        for kind in one.__mro__:
            if not _is_of_library(kind):
                yield from map(inspect.unwrap, filter(inspect.isfunction, vars(kind).values()))
    elif not _is_of_library(type(one)) and not isinstance(one, ModuleType):
        yield type(one)
        yield from list(getattr(one, "__dict__", {}).values())
    elif isinstance(one, Dataset | Sampler | DataLoader):
        yield from list(getattr(cast("Any", one), "__dict__", {}).values())


def _is_of_library(value: object) -> bool:
    return str(getattr(value, "__module__", None)).partition(".")[0] in _NOT_SEARCHED


def words_of(code: CodeType) -> set[str]:
    """Return the names and texts in the code of a function, and of functions within it.

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
