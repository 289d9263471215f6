"""What a loader of the user's own is made of: samplers, batch samplers and datasets, however they are nested."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from pa_core.data.user_loader import is_dataloader

__all__ = ["describe_loader", "length_of_dataset", "loader_parts", "set_epoch"]


def loader_parts(loader: object) -> dict[str, Any]:
    """Return a loader and what it draws its batches from, each once, by the path that leads there.

    Args:
        loader: Any iterable.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> list(loader_parts(DataLoader(range(8), batch_size=4)))
        ['loader', 'loader.sampler', 'loader.batch_sampler', 'loader.dataset']
    """
    found: dict[str, Any] = {}
    waiting: list[tuple[str, object]] = [("loader", loader)]
    while waiting:
        path, part = waiting.pop(0)
        if part is None or any(part is other for other in found.values()):
            continue
        found[path] = part
        waiting += [(f"{path}.{name}", getattr(part, name, None)) for name in ("sampler", "batch_sampler", "dataset")]
    return found


def set_epoch(loader: object, epoch: int) -> None:
    """Tell a loader, its samplers and its dataset which epoch begins, where they have a ``set_epoch`` for it.

    Args:
        loader: A loader of the user's own.
        epoch: The number of the epoch, from 0.
    """
    for part in loader_parts(loader).values():
        method = getattr(part, "set_epoch", None)
        if callable(method):
            method(epoch)


def length_of_dataset(loader: object) -> int | None:
    """Return the number of samples of a loader's dataset; None where nobody knows."""
    try:
        return len(loader_parts(loader)["loader.dataset"])
    except (KeyError, TypeError, NotImplementedError):
        return None


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
    """What decides the order of a loader, and the size of its batches where that is not its own affair."""
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
