"""Detecting streams and samplers that take the share of their process themselves, which must not be divided again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any, cast

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from pa_core.data.code_search import reached_from, words_of
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
"""Names and strings in code that finds out the rank of its process."""

_MOST_COMPARED = 1_000


def reject_own_share(loader: DataLoader[Any]) -> None:
    """Raise an error for a loader that seems to yield the share of its process, because it reads the rank.

    Args:
        loader: A loader that will be divided, without a statement about its share.

    Raises:
        ConfigurationError: Its stream or a sampler finds out its rank.
    """
    for part in _deciding_parts(loader):
        asks = next(_questions(part), None)
        if asks is not None:
            raise _divided_twice(type(part).__name__, f"{asks}() finds out the rank of its process")


def require_same_sources(loader: DataLoader[Any]) -> None:
    """Raise an error for a loader whose stream or samplers differ between processes.

    Every process must call this.

    Args:
        loader: A loader that will be divided, without a statement about its share.

    Raises:
        ConfigurationError: Numbers, files or indices differ.
    """
    parts = {type(part).__name__: part for part in _deciding_parts(loader)}
    values = {f"{kind}{name}": value for kind, part in parts.items() for name, value in _plain_values(part)}
    found: list[str] = []
    try:
        require_same(values, explain=found.append)
    except RanksDifferError:
        kind = next(kind for kind in parts if found[0].startswith(kind))
        raise _divided_twice(kind, found[0]) from None


def _divided_twice(kind: str, given: str) -> ConfigurationError:
    return ConfigurationError(
        f"{kind} seems to take the share of its process itself, and would be divided a second time: some samples "
        "would never be seen.",
        given=given,
        do=f"Pass own_share=True among the arguments for the loader if it yields the share of its process, or "
        f"own_share=False if it yields all samples. In a DataLoader, set it as an attribute: {kind}.own_share.",
    )


def _deciding_parts(loader: DataLoader[Any]) -> Iterator[object]:
    """Yield the parts of a loader that determine its samples: a stream, or samplers."""
    if isinstance(loader.dataset, IterableDataset):
        yield loader.dataset
        return
    for path, part in loader_parts(loader).items():
        if path.endswith("sampler"):
            yield part


def _questions(part: object) -> Iterator[str]:
    """Yield the names of functions in which a part reads its rank, including functions that it calls."""
    for reached in reached_from(part):
        if isinstance(reached, FunctionType) and words_of(reached.__code__) & _ASK_FOR_RANK:
            yield reached.__qualname__


def _plain_values(part: object) -> Iterator[tuple[str, object]]:
    """Yield the attributes of a stream or sampler that may be the numbers, files or samples of its share."""
    attributes: dict[str, object] = dict(getattr(part, "__dict__", {}))
    if isinstance(part, list | tuple | range):
        yield "", _compared(cast("Any", part))
    for name, value in attributes.items():
        compared = _compared(value)
        if compared is not None:
            yield f".{name}", compared


def _compared(value: object) -> object:
    """Return a text for comparing a value; None if it is not compared."""
    if isinstance(value, (list, tuple, range)):
        items = cast("Sequence[object]", value)
        texts = [_compared(item) for item in items[:_MOST_COMPARED]]
        return None if None in texts else f"{len(items)}: {', '.join(map(str, texts))}"
    if isinstance(value, Tensor) or type(value).__module__ == "numpy":
        return next(iter(digests_of_leaves(value).values()), None)
    if isinstance(value, os.PathLike):
        value = os.fspath(cast("os.PathLike[str]", value))
    if isinstance(value, str):
        return None if value.startswith(tempfile.gettempdir()) else value
    return value if isinstance(value, int) else None
