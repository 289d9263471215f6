"""Custom data loaders on several processes and workers: detecting and checking how they are split."""

from __future__ import annotations

import inspect
import marshal
from collections.abc import Iterator, Sized
from typing import Any, NamedTuple, TypeVar, cast

from torch.utils.data import DataLoader, IterableDataset

from pa_core.data.batch_count import require_same_lengths
from pa_core.data.custom_loader import describe_loader, length_of_dataset
from pa_core.distributed import gather_objects, num_processes
from pa_core.errors import ConfigurationError
from pa_core.user_warnings import warn_user
from pa_data import loader_parts

_LIBRARIES_THAT_DIVIDE = {"datasets", "torchdata", "webdataset"}
OWN_SHARE = "own_share"
"""The argument of a loader, or attribute of its dataset or sampler, that says whether it yields one process's share."""


class Share(NamedTuple):
    """The part of the samples that a loader yields.

    Attributes:
        holder: The sampler or the iterable dataset that yields the share.
        number: The number of the share, from 0.
        of: The number of shares.
    """

    holder: object
    number: int
    of: int


def share_of(loader: object) -> Share | None:
    """Return the share of the samples that a sampler or an iterable dataset yields; None without such a statement.

    The share is stated in ``num_replicas`` and ``rank`` attributes, which samplers of many libraries have in common
    with torch's ``DistributedSampler``, or in the attributes that Hugging Face's ``split_dataset_by_node`` sets.

    Args:
        loader: A custom data loader.

    Example:
        >>> class Lines(IterableDataset[str]):
        ...     num_replicas, rank = 4, 1
        ...
        ...     def __iter__(self):
        ...         yield from ["one of four lines"]
        >>> share = share_of(DataLoader(Lines()))
        >>> share.number, share.of
        (1, 4)
    """
    dataset = getattr(loader, "dataset", None)
    holders: list[object] = [part for path, part in loader_parts(loader).items() if path.endswith("sampler")]
    if isinstance(dataset, IterableDataset):
        holders.append(cast("object", dataset))
    for holder in holders:
        sampler = getattr(holder, "_distributed", None) or holder
        number, of = (
            getattr(sampler, "rank", None),
            getattr(sampler, "num_replicas", getattr(sampler, "world_size", None)),
        )
        if isinstance(number, int) and isinstance(of, int):
            return Share(holder, number, of)
    return None


def split_sampler(loader: object) -> Any | None:
    """Return the sampler that selects the share of this process; None if no sampler does.

    Args:
        loader: A custom data loader.

    Example:
        >>> from torch.utils.data import DataLoader, DistributedSampler
        >>> sampler = DistributedSampler(range(8), num_replicas=2, rank=0)
        >>> split_sampler(DataLoader(range(8), sampler=sampler)) is sampler
        True
        >>> split_sampler(DataLoader(range(8))) is None
        True
    """
    share = share_of(loader)
    return None if share is None or isinstance(share.holder, IterableDataset) else share.holder


def states_own_share(loader: DataLoader[Any]) -> bool | None:
    """Return the ``own_share`` attribute of a loader, its samplers or its dataset; None if it is not set.

    Args:
        loader: A custom data loader.

    Example:
        >>> class Lines(IterableDataset[str]):
        ...     own_share = True
        ...     def __iter__(self):
        ...         return iter(["a"])
        >>> states_own_share(DataLoader(Lines())), states_own_share(DataLoader(range(3)))
        (True, None)
    """
    said = (getattr(part, OWN_SHARE, None) for part in loader_parts(loader).values())
    return next((bool(setting) for setting in said if setting is not None), None)


_LoaderT = TypeVar("_LoaderT", bound=DataLoader[Any])


def state_own_share(loader: _LoaderT, says: bool | None) -> _LoaderT:
    """Set ``own_share`` of a loader, and return the loader.

    Args:
        loader: The loader.
        says: The ``own_share`` argument; None if it was not passed.
    """
    if says is not None:
        vars(loader)[OWN_SHARE] = says
    return loader


def divided_by_trainer(dataset: object) -> ConfigurationError:
    """Return the error for a dataset with positions and ``own_share=True``.

    Args:
        dataset: A dataset that the trainer divides by position.
    """
    kind = type(dataset).__name__
    return ConfigurationError(
        "The trainer divides a dataset with positions, so that each sample occurs once.",
        given=f"own_share=True for the loader of a {kind}",
        do=f"Pass all samples on each process; or pass a DataLoader of the share, and set {kind}.own_share = True.",
    )


def check_share(loader: DataLoader[Any], share: Share, *, rank: int, num_processes: int) -> None:
    """Raise an error for the share of another process, and for unequal shares; every process must call this.

    A warning is shown if the shares of samplers together contain more samples than the dataset.

    Args:
        loader: The loader.
        share: The share, from ``share_of``.
        rank: The rank of this process.
        num_processes: The number of processes.

    Raises:
        ConfigurationError: The share belongs to another process, or the processes have different numbers of batches.
    """
    name = type(share.holder).__name__
    if (share.number, share.of) != (rank, num_processes):
        raise ConfigurationError(
            "The samples are split for a different set of processes than this run has.",
            given=f"{name} with num_replicas={share.of} and rank={share.number} on process {rank} of {num_processes}",
            do="Create it after the trainer, by trainer.process_index and trainer.num_processes."
            if num_processes > 1
            else "Leave the splitting out, or start the script with torchrun or accelerate launch.",
        )
    if isinstance(share.holder, IterableDataset):
        return
    if num_processes > 1:
        require_same_lengths(gather_objects(len(loader)))
    of_all, of_dataset = len(cast("Sized", share.holder)) * share.of, length_of_dataset(loader)
    if of_dataset is not None and of_all > of_dataset:
        warn_user(
            f"{name} yields {of_all} samples on all processes together, of a dataset of {of_dataset}: losses and "
            "metrics of an epoch count some of them twice. Leave the sampler out to have each sample counted once, or "
            "pass drop_last=True to it."
        )


def warn_of_filling_up(loader: DataLoader[Any]) -> None:
    """Warn that accelerate splits a loader, and how it makes the shares equal.

    There is no warning if whole batches can be divided evenly.

    Args:
        loader: A loader that is not split yet.
    """
    rest = _what_becomes_of_the_rest(loader, num_processes())
    if rest is None:
        return
    is_stream = isinstance(loader.dataset, IterableDataset)
    name = type(loader.dataset).__name__
    what = f"{name}, an IterableDataset," if is_stream else f"A custom loader or sampler ({describe_loader(loader)})"
    warn_user(
        f"{what} is split over the processes by accelerate, which {rest} "
        "Use a dataset with __len__ and __getitem__, and let the trainer create its loader; or let each process read "
        "its own share: a sampler or a dataset with own_share=True, or split_dataset_by_node of Hugging Face, is used "
        "without splitting."
    )


def _what_becomes_of_the_rest(loader: DataLoader[Any], num_processes: int) -> str | None:
    """Describe how accelerate treats batches that cannot be divided evenly; None if all are used."""
    sampler = cast("Any", loader).batch_sampler
    if getattr(sampler, "drop_last", loader.drop_last) is True:
        rest = len(sampler) % num_processes if hasattr(sampler, "__len__") else None
        if rest == 0:
            return None
        number = "the last batches" if rest is None else f"{rest} of {len(sampler)} batches"
        return f"leaves out {number} of each epoch, so that the shares are equal."
    return "repeats samples if the shares would not be equal. Losses and metrics of an epoch may count those twice."


def warn_of_whole_workers(loader: DataLoader[Any]) -> None:
    """Warn if each of several workers seems to yield all samples of a stream.

    Args:
        loader: A loader.
    """
    dataset = loader.dataset
    if loader.num_workers < 2 or not isinstance(dataset, IterableDataset) or loader.worker_init_fn is not None:  # noqa: PLR2004  # a single worker may yield all
        return
    if hasattr(dataset, "__len__") or any(map(_divides, _datasets_within(dataset))):
        return  # with a length, the batches are counted
    name = type(dataset).__name__
    warn_user(
        f"Each of the {loader.num_workers} workers iterates over {name}, which does not call "
        "torch.utils.data.get_worker_info() to find its share, as far as its code shows: every sample would occur "
        f"{loader.num_workers} times. Let each worker yield its own share, or pass num_workers=1."
    )


def _datasets_within(dataset: object) -> Iterator[object]:
    """Yield an iterable dataset, and the datasets that it may read from."""
    waiting, seen = [dataset], set[int]()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        waiting += [value for value in getattr(part, "__dict__", {}).values() if isinstance(value, IterableDataset)]


def _divides(dataset: object) -> bool:
    """Whether a class reads the number of its worker, or belongs to a library that does."""
    for kind in type(dataset).__mro__:
        library = kind.__module__.partition(".")[0]
        if library in _LIBRARIES_THAT_DIVIDE:
            return True
        functions = [value for value in vars(kind).values() if inspect.isfunction(value) and library != "torch"]
        if any(b"get_worker_info" in marshal.dumps(function.__code__) for function in functions):
            return True
    return False
