"""Iterable datasets: whether they know their position, and whether their workers divide them."""

from __future__ import annotations

import inspect
import marshal
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from pa_core.data.custom_loader import length_of
from pa_core.state_dicts import supports_state_dict
from pa_core.user_warnings import warn_user

__all__ = [
    "has_exact_state",
    "is_stream_with_state",
    "warn_of_whole_workers",
]

_LIBRARIES_THAT_DIVIDE = {"datasets", "torchdata", "webdataset"}


def is_stream_with_state(dataset: object) -> bool:
    """Whether a dataset has no length, and knows its own position, which it can tell without workers only.

    Args:
        dataset: A dataset.
    """
    is_stream = issubclass(type(dataset), IterableDataset)  # isinstance would leave the type of its samples open
    return is_stream and length_of(dataset) is None and has_exact_state(dataset)


def has_exact_state(dataset: object) -> bool:
    """Whether a dataset has a ``state_dict`` that tells all of its position.

    The one of a streaming dataset of Hugging Face leaves out the samples in the buffers in which it shuffles: resumed
    from it, the dataset would never yield them.

    Args:
        dataset: An iterable dataset.
    """
    if not supports_state_dict(dataset):
        return False
    if type(dataset).__module__.partition(".")[0] != "datasets":
        return True
    waiting: list[object] = [getattr(dataset, "_ex_iterable", None)]
    while waiting:
        part = waiting.pop()
        if "BufferShuffled" in type(part).__name__:
            return False
        inner: list[object] = getattr(part, "ex_iterables", None) or []
        waiting += [one for one in (getattr(part, "ex_iterable", None), *inner) if one is not None]
    return True


def warn_of_whole_workers(loader: DataLoader[Any]) -> None:
    """Warn where each of several workers will yield all samples of a stream, as far as can be seen.

    Args:
        loader: A loader.
    """
    dataset = loader.dataset
    if loader.num_workers < 2 or not isinstance(dataset, IterableDataset) or loader.worker_init_fn is not None:  # noqa: PLR2004  # one worker has it all
        return
    if hasattr(dataset, "__len__") or any(map(_divides, _datasets_within(dataset))):
        return  # with a length, the batches are counted
    name = type(dataset).__name__
    warn_user(
        f"Each of the {loader.num_workers} workers iterates over {name}, which does not call "
        "torch.utils.data.get_worker_info() to find its share, as far as can be seen: every sample would come "
        f"{loader.num_workers} times. Let each worker yield its own share, or pass num_workers=1."
    )


def _datasets_within(dataset: object) -> Iterator[object]:
    """An iterable dataset, and those that it may read from."""
    waiting, seen = [dataset], set[int]()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        waiting += [one for one in getattr(part, "__dict__", {}).values() if isinstance(one, IterableDataset)]


def _divides(dataset: object) -> bool:
    """Whether a class looks at the number of its worker, or is one of a library that does."""
    for kind in type(dataset).__mro__:
        library = kind.__module__.partition(".")[0]
        if library in _LIBRARIES_THAT_DIVIDE:
            return True
        functions = [value for value in vars(kind).values() if inspect.isfunction(value) and library != "torch"]
        if any(b"get_worker_info" in marshal.dumps(function.__code__) for function in functions):
            return True
    return False
