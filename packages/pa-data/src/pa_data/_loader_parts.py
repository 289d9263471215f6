"""What a data loader of any kind draws its batches from."""

from __future__ import annotations

from typing import Any


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
        loader: A custom data loader.
        epoch: The number of the epoch, from 0.

    Example:
        >>> from torch.utils.data import DataLoader, DistributedSampler
        >>> sampler = DistributedSampler(range(8), num_replicas=2, rank=0)
        >>> set_epoch(DataLoader(range(8), sampler=sampler), 3)
        >>> sampler.epoch
        3
    """
    for part in loader_parts(loader).values():
        method = getattr(part, "set_epoch", None)
        if callable(method):
            method(epoch)
