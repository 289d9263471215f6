"""Streams and samplers that take the share of their process by themselves, and would be divided a second time."""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Sampler

from pa_core.errors import ConfigurationError, RanksDifferError
from pa_data import loader_parts
from pa_data.digests import digests_of_leaves
from pa_distributed import require_same

_ASK_FOR_RANK = frozenset(
    {
        *("get_rank", "get_world_size", "process_index", "num_processes", "global_rank", "split_by_node"),
        *("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    }
)
"""Names and texts in the code of what finds out which process it is in."""

_NEVER_ASK = {*sys.stdlib_module_names, "accelerate", "numpy", "pandas", "pyarrow", "torch", "transformers"}
"""Libraries in whose code nothing is looked for: the script that calls them names what it asks them for."""

_MOST_PARTS = 2_000
_MOST_COMPARED = 1_000


def refuse_own_share(loader: DataLoader[Any]) -> None:
    """Raise an error for a loader that seems to yield the share of its process, as it finds out which process that is.

    Args:
        loader: A loader that is about to be divided, and says nothing about its share.

    Raises:
        ConfigurationError: Its stream or a sampler finds out its rank.
    """
    for part in _deciding_parts(loader):
        asks = next(_questions(part), None)
        if asks is not None:
            raise _divided_twice(type(part).__name__, f"{asks}() finds out the rank of its process")


def require_same_sources(loader: DataLoader[Any]) -> None:
    """Raise an error for a loader whose stream or samplers hold something else on each process.

    Every process must call this.

    Args:
        loader: A loader that is about to be divided, and says nothing about its share.

    Raises:
        ConfigurationError: Numbers, files or indices differ.
    """
    parts = {type(part).__name__: part for part in _deciding_parts(loader)}
    try:
        require_same({f"{kind}{name}": value for kind, part in parts.items() for name, value in _plain_values(part)})
    except RanksDifferError as error:
        kind = next(kind for kind in parts if error.given.startswith(kind))
        raise _divided_twice(kind, error.given) from None


def _divided_twice(kind: str, given: str) -> ConfigurationError:
    return ConfigurationError(
        f"{kind} seems to take the share of its process by itself, and would be divided a second time: some samples "
        "would never be seen.",
        given=given,
        do=f"Say what it yields: own_share=True among the arguments for the loader for the share of its process, or "
        f"own_share=False for all samples on each process. In a DataLoader, set it as an attribute: {kind}.own_share.",
    )


def _deciding_parts(loader: DataLoader[Any]) -> Iterator[object]:
    """The parts of a loader that decide which samples come: a stream, or samplers."""
    if isinstance(loader.dataset, IterableDataset):
        yield loader.dataset
        return
    for path, part in loader_parts(loader).items():
        if path.endswith("sampler"):
            yield part


def _questions(part: object) -> Iterator[str]:
    """The functions, by name, in which a part finds out its rank; those that it calls included."""
    waiting: list[object] = [part]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_PARTS:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, FunctionType):
            if _words(one.__code__) & _ASK_FOR_RANK:
                yield one.__qualname__
            waiting += _called(one)
        else:
            waiting += _held(one)


def _called(function: FunctionType) -> Iterator[object]:
    """What a function refers to, in its module, its closure or its defaults."""
    words = _words(function.__code__)
    for value in [function.__globals__.get(word) for word in words]:
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] not in _NEVER_ASK:
            yield from (one for one in map(vars(value).get, words) if isinstance(one, (FunctionType, type)))
        elif isinstance(value, (FunctionType, type, partial)) and not _is_of_library(cast("object", value)):
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
        yield from cast("list[object]", one)[:_MOST_COMPARED]
    elif isinstance(one, Mapping):
        yield from list(cast("Mapping[object, object]", one).values())[:_MOST_COMPARED]
    elif isinstance(one, type):
        for kind in one.__mro__:
            if not _is_of_library(kind):
                yield from map(inspect.unwrap, filter(inspect.isfunction, vars(kind).values()))
    elif not _is_of_library(type(one)) and not isinstance(one, ModuleType):
        yield type(one)
        yield from _attributes(one).values()
    elif isinstance(one, IterableDataset | Sampler) or hasattr(one, "sampler"):
        yield from _attributes(cast("Any", one)).values()


def _attributes(one: object) -> dict[str, object]:
    return dict(getattr(one, "__dict__", {}))


def _is_of_library(value: object) -> bool:
    return str(getattr(value, "__module__", None)).partition(".")[0] in _NEVER_ASK


def _words(code: CodeType) -> set[str]:
    """The names and short texts in the code of a function, and of functions within it."""
    found = {*code.co_names, *code.co_freevars}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _words(constant)
        elif isinstance(constant, str):
            found.add(constant)
    return found


def _plain_values(part: object) -> Iterator[tuple[str, object]]:
    """The attributes of a stream or sampler that may be the numbers, files or samples of its share."""
    attributes, is_sequence = _attributes(part), isinstance(part, list | tuple | range)
    if is_sequence:
        yield "", _compared(part)
    for name, value in attributes.items():
        compared = _compared(value)
        if compared is not None:
            yield f".{name}", compared


def _compared(value: object) -> object:
    """What is compared of a value; None where nothing is."""
    if isinstance(value, (list, tuple, range)):
        items = cast("Sequence[object]", value)
        texts = [_compared(one) for one in items[:_MOST_COMPARED]]
        return None if None in texts else f"{len(items)}: {', '.join(map(str, texts))}"
    if isinstance(value, Tensor) or type(value).__module__ == "numpy":
        return next(iter(digests_of_leaves(value).values()), None)
    if isinstance(value, os.PathLike):
        value = os.fspath(cast("os.PathLike[str]", value))
    if isinstance(value, str):
        return None if value.startswith(tempfile.gettempdir()) else value
    return value if isinstance(value, int) else None
