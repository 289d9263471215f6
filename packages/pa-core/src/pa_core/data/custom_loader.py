"""Data loaders of any kind: which kind one is, how many batches it has, what it consists of, and how to describe it."""

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
"""Libraries whose samplers yield as many indices as their lengths say."""


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
    """Raise an error for a loader that has nothing to offer.

    Args:
        loader: What is to be iterated in an epoch.
        origin: Where it comes from, for the message.
        is_repeated: Whether it is iterated over several times.

    Raises:
        ConfigurationError: It cannot be iterated over, or not as often as it is to be.
        EmptyDatasetError: It has no batch.
    """
    if is_keyed(innermost(loader)):
        return  # it was checked when it was made, and may have no batch for this process alone
    kind = type(loader).__name__
    if not isinstance(innermost(loader), Iterable):
        raise ConfigurationError(
            f"There is no loader, but a {kind} from {origin}. Return a DataLoader, or a list of batches."
        )
    if length_of(loader) == 0:
        raise EmptyDatasetError(
            f"The loader has no batch. Got a {kind} of length 0 from {origin}. Look at how the dataset was made, "
            "choose a smaller batch size, or leave drop_last out."
        )
    if is_repeated and isinstance(innermost(loader), Iterator):
        raise ConfigurationError(
            f"The loader is used up after one evaluation: a {kind} from {origin} is an iterator. Make the loader a "
            "list, or an object whose __iter__ yields the batches."
        )


def length_of(loader: object) -> int | None:
    """Return the number of batches of a loader; None where only its end tells.

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
    """Return the number of batches that the slices around a loader leave of it; None without a slice."""
    limit: int | None = None
    while is_slice(loader):
        limit = loader.slice_size if limit is None else min(limit, loader.slice_size)
        loader = loader.wrapped
    return limit


def is_slice(loader: object) -> TypeIs[DataLoaderSlice[Any]]:
    """Whether this is the beginning of another loader."""
    return isinstance(loader, DataLoaderSlice)


def is_keyed(loader: object) -> TypeIs[KeyedDataLoader[Any]]:
    """Whether this is a loader whose order is the trainer's."""
    return isinstance(loader, KeyedDataLoader)


def is_dataloader(loader: object) -> TypeIs[DataLoader[Any]]:
    """Whether this is any ``torch.utils.data.DataLoader``."""
    return isinstance(loader, DataLoader)


def length_of_dataset(loader: object) -> int | None:
    """Return the number of samples of a loader's dataset; None where it is not known."""
    return length_of(loader_parts(loader).get("loader.dataset"))


def has_certain_length(loader: object) -> bool:
    """Whether only a sample that raises ``StopIteration`` ends an epoch of a loader before its length.

    So it is where torch's own loader and samplers count the positions of a dataset; others may be mistaken.

    Args:
        loader: A loader, also one that accelerate has split.

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
    """Return what decides the batches of a loader and their order, in a few words.

    The number of workers is among it where it decides what they hold.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> describe_loader(DataLoader(range(8), batch_size=4, shuffle=True))
        'DataLoader with RandomSampler, batches of 4'
        >>> describe_loader(["a batch", "another one"])
        'list'
    """
    kind = loader.__class__.__name__  # of accelerate's wrappers, that of the loader inside
    if not is_dataloader(loader):
        return kind
    source, batch_size = _source_of_batches(loader)
    batches = "" if batch_size is None else f", batches of {batch_size}"
    decide = kind != "DataLoader" or isinstance(loader.dataset, IterableDataset)
    workers = f", {loader.num_workers} worker{'' if loader.num_workers == 1 else 's'}" if decide else ""
    return f"{kind} with {type(source).__name__}{batches}{workers}"


def _source_of_batches(loader: DataLoader[Any]) -> tuple[Any, int | None]:
    """What decides the order of a loader, and the batch size, unless a custom batch sampler decides it."""
    if isinstance(loader.dataset, IterableDataset):
        return loader.dataset, loader.batch_size
    parts = loader_parts(loader)
    split = parts.get("loader.batch_sampler.batch_sampler")  # what accelerate deals to the processes
    batch_sampler = parts.get("loader.batch_sampler") if split is None else split
    if batch_sampler is None:
        return parts["loader.sampler"], None
    if isinstance(batch_sampler, BatchSampler) and type(batch_sampler).__name__ == "BatchSampler":
        return batch_sampler.sampler, batch_sampler.batch_size
    return batch_sampler, getattr(batch_sampler, "batch_size", None)


def count_steps(loader: object) -> int | None:
    """Return the number of steps of an epoch, of a keyed loader the chosen one; it is the same on every process.

    Args:
        loader: Any loader, or none.

    Returns:
        The number; None of a stream, whose end alone tells.
    """
    keyed = innermost(loader)
    return _steps_of_keyed(keyed, batches_of_slices(loader), keyed.epoch) if is_keyed(keyed) else length_of(loader)


def lengths_of_epochs(
    loader: SizedIterable[Any],
    accumulation_steps: int,
    max_num_train_steps: int | None = None,
    updates_per_group: int = 1,
) -> EpochLengths:
    """Return how many steps and updates each epoch of a training loader has.

    Args:
        loader: The loader, split over the processes.
        accumulation_steps: Batches of one process in an update.
        max_num_train_steps: Updates after which the run ends, if that was requested.
        updates_per_group: As for ``EpochLengths``.

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
    """End the workers of keyed loaders, which would otherwise stay for the next epoch.

    Args:
        *loaders: Loaders of any kind, or None.
    """
    for loader in map(innermost, loaders):
        if is_keyed(loader):
            loader.close()


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
    from pa_core.data.early_draws import is_shuffled_in_buffer  # of use for streams of Hugging Face alone

    return not is_shuffled_in_buffer(dataset)
