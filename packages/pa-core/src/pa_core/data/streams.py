"""Iterable datasets: which share of a stream a process has, and whether its workers divide it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, NamedTuple, cast

from torch.utils.data import DataLoader, IterableDataset

from pa_core.data.custom_loader import describe_loader
from pa_core.errors import ConfigurationError
from pa_core.state_dicts import supports_state_dict
from pa_core.user_warnings import warn_user

__all__ = [
    "StreamShare",
    "check_share_of_stream",
    "has_exact_state",
    "is_stream_with_state",
    "share_of_stream",
    "warn_of_whole_workers",
]

_LIBRARIES_THAT_DIVIDE = {"datasets", "torchdata", "webdataset"}


class StreamShare(NamedTuple):
    """Which part of a stream a dataset yields.

    Attributes:
        number: The number of the share, from 0.
        of: The number of shares.
    """

    number: int
    of: int


def share_of_stream(loader: object) -> StreamShare | None:
    """Return the share that an iterable dataset says it yields; None where it does not say.

    It says so by its attributes ``num_replicas`` and ``rank``, as samplers do, or as the datasets do that
    ``split_dataset_by_node`` of Hugging Face returns.

    Args:
        loader: A loader.

    Example:
        >>> class Lines(IterableDataset[str]):
        ...     num_replicas, rank = 4, 1
        ...
        ...     def __iter__(self):
        ...         yield from ["one of four lines"]
        >>> share_of_stream(DataLoader(Lines()))
        StreamShare(number=1, of=4)
    """
    dataset = getattr(loader, "dataset", None)
    if not isinstance(dataset, IterableDataset):
        return None
    stream = cast("object", dataset)
    for part, names in (
        (stream, ("rank", "num_replicas")),
        (getattr(stream, "_distributed", None), ("rank", "world_size")),
    ):
        number, of = (getattr(part, name, None) for name in names)
        if isinstance(number, int) and isinstance(of, int):
            return StreamShare(number, of)
    return None


def check_share_of_stream(loader: object, share: StreamShare, *, rank: int, num_processes: int) -> None:
    """Raise an error for the share of another process.

    Args:
        loader: The loader.
        share: What ``share_of_stream`` returned.
        rank: The rank of this process.
        num_processes: The number of processes.

    Raises:
        ConfigurationError: The dataset is split for other processes.
    """
    if share != (rank, num_processes):
        raise ConfigurationError(
            "The stream is split for a different set of processes than this run has.",
            given=f"share {share.number} of {share.of} of {describe_loader(loader)} on process {rank}",
            expected=f"on each of {num_processes} processes its own share of {num_processes}",
            do="Split it by trainer.process_index and trainer.num_processes."
            if num_processes > 1
            else "Leave the splitting out, or start the script with torchrun or accelerate launch.",
        )


def is_stream_with_state(dataset: object) -> bool:
    """Whether a dataset has no length, and knows its own position, which it can tell without workers only.

    Args:
        dataset: A dataset.
    """
    if not isinstance(dataset, IterableDataset) or not has_exact_state(cast("object", dataset)):
        return False
    try:
        len(cast("Any", dataset))
    except (TypeError, NotImplementedError):
        return True
    return False


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
    classes = [
        one for one in type(dataset).__mro__ if one.__module__.partition(".")[0] not in ("builtins", "typing", "torch")
    ]
    if any(one.__module__.partition(".")[0] in _LIBRARIES_THAT_DIVIDE for one in classes):
        return True
    functions = [value for one in classes for value in vars(one).values() if inspect.isfunction(value)]
    return any(_names_worker_info(function) for function in functions)


def _names_worker_info(function: Callable[..., object]) -> bool:
    waiting: list[CodeType] = [cast("Any", function).__code__]
    while waiting:
        code = waiting.pop()
        if "get_worker_info" in (*code.co_names, *code.co_freevars):
            return True
        waiting += [one for one in code.co_consts if isinstance(one, CodeType)]
    return False
