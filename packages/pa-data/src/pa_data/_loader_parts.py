"""The samplers and the dataset of a data loader of any kind."""

from __future__ import annotations

from typing import Any


def loader_parts(loader: object) -> dict[str, Any]:
    """Return a loader, its samplers and its dataset, by the attribute path of each.

    Use it to look for a property of any part of a loader, for example for a sampler with ``set_epoch``. Samplers and
    datasets that wrap others under the names ``sampler``, ``batch_sampler`` and ``dataset`` are followed at any depth.
    Other names are not followed: for a custom wrapper that keeps a loader as ``.loader``, only the wrapper is returned,
    so pass the inner loader instead. Nothing is loaded or iterated.

    Args:
        loader: A data loader, or any other object.

    Returns:
        The loader as ``"loader"``, and the objects that it and its parts have as ``sampler``, ``batch_sampler`` and
        ``dataset``, under paths such as ``"loader.dataset.dataset"``, the outer objects first. Each object appears
        once. The dictionary is empty for None.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> from pa_data import loader_parts
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
    """Call the ``set_epoch`` methods of a loader, its samplers and its dataset, where they exist.

    Call it at the start of each epoch in your own loop, before you iterate over the loader. Without it, a
    ``DistributedSampler`` repeats the same order in every epoch. The function works for every loader. Parts without the
    method are not changed, and for a ``KeyedDataLoader`` the call does the same as ``loader.set_epoch(epoch)``. The
    parts are the objects that ``loader_parts`` finds. Workers that a plain ``DataLoader`` keeps with
    ``persistent_workers=True`` have their own copies of the dataset, whose ``set_epoch`` is not called.

    Args:
        loader: A data loader of any kind.
        epoch: The epoch number, from 0.

    Example:
        >>> from torch.utils.data import DataLoader, DistributedSampler
        >>> from pa_data import set_epoch
        >>> sampler = DistributedSampler(range(8), num_replicas=2, rank=0)
        >>> set_epoch(DataLoader(range(8), sampler=sampler), 3)
        >>> sampler.epoch
        3
    """
    for part in loader_parts(loader).values():
        method = getattr(part, "set_epoch", None)
        if callable(method):
            method(epoch)
