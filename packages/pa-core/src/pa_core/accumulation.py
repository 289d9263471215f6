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

from pa_core.data.batch_count import BatchCount
from pa_core.data.custom_loader import batches_of_slices, innermost, is_keyed
from pa_core.data.split_sampler import split_sampler
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
    keyed, limit = innermost(loader), batches_of_slices(loader)
    if not is_keyed(keyed):
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
    count: BatchCount | None = None,
) -> Iterator[tuple[MicroBatch, Any]]:
    """Iterate over the batches of an epoch together with the part that each has in its update.

    Args:
        loader: The loader of the epoch, which knows the sizes of its batches if it is ours.
        batches: Its batches, on the device.
        accumulation_steps: The number of batches of each process in an update; the last group of an epoch may be
            shorter, and weighs what it holds.
        rank: The rank of this process.
        num_processes: The number of processes.
        steps_done: The number of steps of the epoch that lie before the first of the batches.
        count: Counts the batches of a custom loader.
    """
    keyed, limit = innermost(loader), batches_of_slices(loader)
    if not is_keyed(keyed):
        count = BatchCount(loader, "training") if count is None else count
        count.given = steps_done
        sizes = _known_sizes(loader, num_processes)
        yield from _of_users_loader(count, sizes, batches, accumulation_steps, num_processes)
        if count.is_per_process:
            yield from _without_samples(count, steps_done, accumulation_steps)
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


def _known_sizes(loader: SizedIterable, num_processes: int) -> Callable[[int], int] | None:
    """The number of samples that this process has in a step of a loader of the user's own, where its sampler tells.

    On several processes accelerate fills the last batches up, so that all are of one size. A sampler that has split
    the samples itself gives each process as many.
    """
    users_loader = innermost(loader)
    sampler = getattr(users_loader, "batch_sampler", None)
    is_split = num_processes == 1 or split_sampler(users_loader) is not None
    if not is_split or not isinstance(sampler, BatchSampler):
        return None
    samples: Any = sampler.sampler
    try:
        total = len(samples)
    except (TypeError, NotImplementedError):
        return None
    return lambda step: max(1, min(sampler.batch_size, total - step * sampler.batch_size))


def _of_users_loader(
    count: BatchCount,
    size: Callable[[int], int] | None,
    batches: Iterable[Any],
    accumulation_steps: int,
    num_processes: int,
) -> Iterator[tuple[MicroBatch, Any]]:
    """Where nothing tells the sizes, the batches of a group weigh the same.

    Within a group one batch is read ahead, so that the group of the last batch is closed even where the length was not
    true, unless other processes may have more batches. Between two updates none is, so that a training state need not
    know of it; but the loader comes to its end with the last batch, as it may draw from random streams for that. What
    it has beyond its length is left.
    """
    arriving = iter(batches)
    first = count.given
    batch = next(arriving, _END)
    while batch is not _END and count.given < count.expected:
        step, group = count.given, range(first, min(first + accumulation_steps, count.expected))
        is_full = step + 1 == first + accumulation_steps
        is_last = step + 1 == count.expected
        upcoming = _NOT_YET if is_full and not is_last else next(arriving, _END)
        part = MicroBatch(
            weight=1 / len(group) if size is None else size(step) / sum(map(size, group)),
            ends_group=is_full or is_last or (upcoming is _END and not count.is_per_process),
            global_samples=None if size is None else size(step) * num_processes,
        )
        count.given += 1
        count.has_more = is_last and upcoming is not _END
        first = count.given if is_full else first
        yield part, batch
        batch = next(arriving, _END) if upcoming is _NOT_YET else upcoming
    count.has_ended = batch is _END


def _without_samples(count: BatchCount, first: int, accumulation_steps: int) -> Iterator[tuple[MicroBatch, Any]]:
    """The steps in which other processes may still have batches, and would wait for this one."""
    for step in range(count.given, count.expected):
        ends_group = (step + 1 - first) % accumulation_steps == 0 or step + 1 == count.expected
        yield MicroBatch(weight=0.0, ends_group=ends_group, is_empty=True), None


_END, _NOT_YET = object(), object()
