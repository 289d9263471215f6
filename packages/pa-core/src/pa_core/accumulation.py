"""How batches form the groups of an optimizer update, and what each of them weighs in it.

The gradient of an update is that of the mean loss over all samples of the update, on all processes. A micro-batch
holds the mean over its own samples, so it weighs as much as its share of them; averaging over the processes, which
``DistributedDataParallel`` does, is undone by the factor of their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import BatchSampler

from pa_core.data import KeyedDataLoader
from pa_core.data.user_loader import innermost, is_keyed, is_slice
from pa_core.types import SizedIterable

__all__ = ["MicroBatch", "count_steps", "micro_batches"]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The part that one process has in one step of an epoch.

    Attributes:
        weight: The factor on the mean loss of this process, such that the averaged gradients of the group are those of
            the mean over all of its samples.
        ends_group: Whether an optimizer update follows.
        global_samples: The number of samples in this step over all processes; None if the loader is not ours and
            cannot say.
        is_empty: Whether this process has no sample in this step, while others do.

    Example:
        >>> MicroBatch(weight=0.25, ends_group=True, global_samples=8).is_empty
        False
    """

    weight: float
    ends_group: bool
    global_samples: int | None = None
    is_empty: bool = False


def count_steps(loader: SizedIterable) -> int:
    """Return the number of steps of an epoch, which is the same on every process.

    Args:
        loader: Any loader with a length.
    """
    keyed, limit = _keyed_part(loader)
    if keyed is None:
        return len(loader)
    steps = len(keyed.split)
    return steps if limit is None else min(steps, limit)


def micro_batches(
    loader: SizedIterable,
    batches: Iterable[Any],
    *,
    accumulation_steps: int,
    rank: int,
    num_processes: int,
    steps_done: int = 0,
) -> Iterator[tuple[MicroBatch, Any]]:
    """Iterate over the batches of an epoch together with the part that each has in its update.

    Args:
        loader: The loader of the epoch, which knows the sizes of its batches if it is ours.
        batches: Its batches, on the device.
        accumulation_steps: The number of batches of each process in an update; the last group of an epoch may be
            shorter, and weighs what it holds.
        rank: The rank of this process.
        num_processes: The number of processes.
        steps_done: The number of steps of the epoch that lie before the position of a loader of ours.
    """
    keyed, limit = _keyed_part(loader)
    if keyed is None:
        yield from _of_users_loader(len(loader), _known_sizes(loader, num_processes), batches, accumulation_steps)
        return
    arriving = iter(batches)
    steps = len(keyed.split) if limit is None else min(len(keyed.split), limit - steps_done)
    for first in range(0, steps, accumulation_steps):
        group = range(first, min(first + accumulation_steps, steps))
        total = sum(keyed.split.size(step) for step in group)
        for step in group:
            mine = len(keyed.split.piece(step, rank))
            part = MicroBatch(
                weight=mine * num_processes / total,
                ends_group=step == group[-1],
                global_samples=keyed.split.size(step),
                is_empty=mine == 0,
            )
            yield part, None if part.is_empty else next(arriving)


def _keyed_part(loader: object) -> tuple[KeyedDataLoader[Any] | None, int | None]:
    """The loader of ours inside any number of slices, and the number of batches that they leave."""
    limit: int | None = None
    while is_slice(loader):
        limit = loader.slice_size if limit is None else min(limit, loader.slice_size)
        loader = loader.wrapped
    return (loader if is_keyed(loader) else None), limit


def _known_sizes(loader: SizedIterable, num_processes: int) -> Callable[[int], int] | None:
    """The number of samples in a step of a loader of the user's own, where its sampler tells.

    On several processes accelerate fills the last batches up, so that all are of one size.
    """
    sampler = getattr(innermost(loader), "batch_sampler", None)
    if num_processes > 1 or not isinstance(sampler, BatchSampler):
        return None
    samples: Any = sampler.sampler
    try:
        total = len(samples)
    except (TypeError, NotImplementedError):
        return None
    return lambda step: max(1, min(sampler.batch_size, total - step * sampler.batch_size))


def _of_users_loader(
    length: int, size: Callable[[int], int] | None, batches: Iterable[Any], accumulation_steps: int
) -> Iterator[tuple[MicroBatch, Any]]:
    """Where nothing tells the sizes, the batches of a group weigh the same.

    One batch is read ahead, so that the group of the last batch is closed even where the length was not true.
    """
    arriving = iter(batches)
    upcoming = next(arriving, _END)
    step = 0
    while upcoming is not _END:
        batch, upcoming = upcoming, next(arriving, _END)
        first = step - step % accumulation_steps
        group = range(first, max(first + 1, min(first + accumulation_steps, length)))
        part = MicroBatch(
            weight=1 / len(group) if size is None else size(step) / sum(map(size, group)),
            ends_group=upcoming is _END or step + 1 == first + accumulation_steps,
            global_samples=None if size is None else size(step),
        )
        step += 1
        yield part, batch


_END = object()
