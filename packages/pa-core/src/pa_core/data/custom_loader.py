"""Inspecting data loaders of any kind: their kind, length, parts and description."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from functools import partial
from typing import Any, cast

from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset
from typing_extensions import TypeIs

from pa_core import _accelerate
from pa_core._tensors import supports_state_dict
from pa_core.data.batch_limit import DataLoaderSlice
from pa_core.data.epoch_lengths import EpochLengths
from pa_core.errors import ConfigurationError, EmptyDatasetError
from pa_core.types import SizedIterable
from pa_data import KeyedDataLoader, loader_parts

_TRUE_SAMPLERS = "accelerate", "torch"
"""Libraries whose samplers have the right length."""


def plain_dataloader(dataset: Dataset[Any], kwargs: Mapping[str, Any]) -> DataLoader[Any]:
    """Create a ``DataLoader`` with a custom sampler, or over an ``IterableDataset``.

    Args:
        dataset: The samples.
        kwargs: Arguments of ``DataLoader``. Those that it rejects with a sampler, a batch sampler or an iterable
            dataset, and that the trainer adds to every loader, are left out.
    """
    excluded: set[str] = set()
    if isinstance(dataset, IterableDataset) or kwargs.get("sampler") is not None:
        excluded |= {"shuffle"}
    if kwargs.get("batch_sampler") is not None:
        excluded |= {"batch_size", "shuffle", "sampler", "drop_last"}
    return DataLoader(dataset, **{key: value for key, value in kwargs.items() if key not in excluded})


def check_loader(loader: object, origin: str, *, is_repeated: bool = False) -> None:
    """Raise an error for a loader without batches.

    Args:
        loader: The object to iterate over in an epoch.
        origin: The origin of the loader, for the message.
        is_repeated: Whether the loader is iterated over several times.

    Raises:
        ConfigurationError: The loader cannot be iterated over, or only once.
        EmptyDatasetError: The loader has no batch.
    """
    if is_keyed(innermost(loader)):
        return  # it was checked when it was created, and may have no batch on this process
    kind = type(loader).__name__
    if not isinstance(innermost(loader), Iterable):
        raise ConfigurationError(
            f"There is no loader, but a {kind} from {origin}. Return a DataLoader, or a list of batches."
        )
    if length_of(loader) == 0:
        raise EmptyDatasetError(
            f"The loader has no batch. Got a {kind} of length 0 from {origin}. Check how the dataset was created, "
            "choose a smaller batch size, or leave drop_last out."
        )
    if is_repeated and isinstance(innermost(loader), Iterator):
        raise ConfigurationError(
            f"The loader is used up after one evaluation: a {kind} from {origin} is an iterator. Make the loader a "
            "list, or an object whose __iter__ yields the batches."
        )


def length_of(loader: object) -> int | None:
    """Return the number of batches of a loader; None if it has no length.

    Args:
        loader: Any iterable of batches.

    Example:
        >>> length_of(["one", "two"]), length_of(iter(["one", "two"]))
        (2, None)
    """
    try:
        return len(cast("Sized", loader))
    except (TypeError, NotImplementedError):
        return None


def innermost(loader: object) -> object:
    """Return the loader inside any number of ``DataLoaderSlice``."""
    while is_slice(loader):
        loader = loader.wrapped
    return loader


def batches_of_slices(loader: object) -> int | None:
    """Return the number of batches to which slices limit a loader; None without a slice."""
    limit: int | None = None
    while is_slice(loader):
        limit = loader.slice_size if limit is None else min(limit, loader.slice_size)
        loader = loader.wrapped
    return limit


def is_slice(loader: object) -> TypeIs[DataLoaderSlice[Any]]:
    """Whether a loader is a ``DataLoaderSlice``."""
    return isinstance(loader, DataLoaderSlice)


def is_keyed(loader: object) -> TypeIs[KeyedDataLoader[Any]]:
    """Whether a loader is a ``KeyedDataLoader``, whose order is the trainer's."""
    return isinstance(loader, KeyedDataLoader)


def is_dataloader(loader: object) -> TypeIs[DataLoader[Any]]:
    """Whether an object is a ``torch.utils.data.DataLoader``."""
    return isinstance(loader, DataLoader)


def length_of_dataset(loader: object) -> int | None:
    """Return the number of samples of a loader's dataset; None if it is unknown."""
    return length_of(loader_parts(loader).get("loader.dataset"))


def has_certain_length(loader: object) -> bool:
    """Whether only a sample that raises ``StopIteration`` ends an epoch of a loader before its length.

    It is true for torch's own loader and samplers over a dataset; the lengths of others may be wrong.

    Args:
        loader: A loader, split by accelerate or not.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> has_certain_length(DataLoader(range(8), batch_size=4)), has_certain_length(["one", "two"])
        (True, False)
    """
    plain: Any = _accelerate.fetching_loader(loader)
    kind: object = cast("object", type(plain))
    if kind is not DataLoader or isinstance(plain.dataset, IterableDataset):
        return False
    samplers = (part for path, part in loader_parts(plain).items() if path.endswith("sampler"))
    return all(type(sampler).__module__.partition(".")[0] in _TRUE_SAMPLERS for sampler in samplers)


def describe_loader(loader: object) -> str:
    """Return a short description of a loader: the objects that determine its batches and their order.

    The number of workers is included if the batches depend on it.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> describe_loader(DataLoader(range(8), batch_size=4, shuffle=True))
        'DataLoader with RandomSampler, batches of 4'
        >>> describe_loader(["a batch", "another one"])
        'list'
    """
    kind = loader.__class__.__name__  # accelerate's wrappers have the class of the loader inside
    if not is_dataloader(loader):
        return kind
    source, batch_size = _source_of_batches(loader)
    batches = "" if batch_size is None else f", batches of {batch_size}"
    decide = kind != "DataLoader" or isinstance(loader.dataset, IterableDataset)
    workers = f", {loader.num_workers} worker{'' if loader.num_workers == 1 else 's'}" if decide else ""
    return f"{kind} with {type(source).__name__}{batches}{workers}"


def _source_of_batches(loader: DataLoader[Any]) -> tuple[Any, int | None]:
    """Return the object that determines the order of a loader, and the batch size, unless a batch sampler sets it."""
    if isinstance(loader.dataset, IterableDataset):
        return loader.dataset, loader.batch_size
    parts = loader_parts(loader)
    split = parts.get("loader.batch_sampler.batch_sampler")  # the batch sampler that accelerate divides
    batch_sampler = parts.get("loader.batch_sampler") if split is None else split
    if batch_sampler is None:
        return parts["loader.sampler"], None
    if isinstance(batch_sampler, BatchSampler) and type(batch_sampler).__name__ == "BatchSampler":
        return batch_sampler.sampler, batch_sampler.batch_size
    return batch_sampler, getattr(batch_sampler, "batch_size", None)


def count_steps(loader: object) -> int | None:
    """Return the number of steps of an epoch, which is the same on every process.

    For a keyed loader, this is the epoch that it is set to.

    Args:
        loader: A loader, or None.

    Returns:
        The number of steps; None for a stream.
    """
    keyed = innermost(loader)
    return _steps_of_keyed(keyed, batches_of_slices(loader), keyed.epoch) if is_keyed(keyed) else length_of(loader)


def lengths_of_epochs(
    loader: SizedIterable[Any],
    accumulation_steps: int,
    max_num_train_steps: int | None = None,
    updates_per_group: int = 1,
) -> EpochLengths:
    """Return the numbers of steps and updates of the epochs of a training loader.

    Args:
        loader: The loader, split over the processes.
        accumulation_steps: The number of batches of one process in an update.
        max_num_train_steps: The number of updates of the run, or None.
        updates_per_group: The largest number of updates of an accumulation group; see ``EpochLengths``.

    Raises:
        ConfigurationError: Neither the length of the loader nor the length of the run is known.
    """
    keyed = innermost(loader)
    if is_keyed(keyed):
        steps = partial(_steps_of_keyed, keyed, batches_of_slices(loader))
        are_equal = keyed.given_order.equal_epochs
        return EpochLengths(steps, accumulation_steps, are_equal=are_equal, updates_per_group=updates_per_group)
    length = length_of(loader)
    if length is not None:
        return EpochLengths(lambda _: length, accumulation_steps, are_equal=True, updates_per_group=updates_per_group)
    if max_num_train_steps is None:
        raise ConfigurationError(
            "The training data has no length, so it is not known when the run ends: "
            f"{describe_loader(innermost(loader))}. Pass max_num_train_steps, or give the dataset or your loader a "
            "__len__."
        )
    whole_run = max_num_train_steps * accumulation_steps
    return EpochLengths(lambda _: whole_run, accumulation_steps, are_equal=True, are_known=False)


def _steps_of_keyed(keyed: KeyedDataLoader[Any], limit: int | None, epoch: int) -> int:
    steps = keyed.num_steps(epoch)
    return steps if limit is None else min(steps, limit)


def end_workers(*loaders: object) -> None:
    """End the workers of keyed loaders, which would otherwise be kept for the next epoch.

    Args:
        *loaders: Loaders of any kind, or None.
    """
    for loader in map(innermost, loaders):
        if is_keyed(loader):
            loader.close()


def is_stream_with_state(dataset: object) -> bool:
    """Whether a dataset has no length but a state with its position, which only works without workers.

    Args:
        dataset: A dataset.
    """
    is_stream = issubclass(type(dataset), IterableDataset)  # isinstance would make the type of its samples unknown
    return is_stream and length_of(dataset) is None and has_exact_state(dataset)


def has_exact_state(dataset: object) -> bool:
    """Whether a dataset has a ``state_dict`` with its complete position.

    The state of a Hugging Face streaming dataset does not contain the samples in its shuffle buffers, so a dataset that
    resumed from it would never yield them.

    Args:
        dataset: An iterable dataset.
    """
    if not supports_state_dict(dataset):
        return False
    if type(dataset).__module__.partition(".")[0] != "datasets":
        return True
    from pa_core.data.early_draws import is_shuffled_in_buffer  # of use for streams of Hugging Face alone

    return not is_shuffled_in_buffer(dataset)
