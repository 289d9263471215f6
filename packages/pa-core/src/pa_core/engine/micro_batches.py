"""The batches of an epoch, each with its place in its update."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple, cast

from torch.utils.data import BatchSampler

from pa_core.data.batch_count import BatchCount
from pa_core.data.custom_loader import batches_of_slices, innermost, is_keyed
from pa_core.data.split_sampler import split_sampler
from pa_core.distributed import gather_objects
from pa_core.types import SizedIterable
from pa_data import KeyedDataLoader

_END, _NOT_YET = object(), object()


class BatchPlace(NamedTuple):
    """The place of a batch in its epoch and its update, on one process.

    It is passed to the ``start_batch`` method of an exchange; in a ``Run``, scripts read it as ``update.place``. You
    never construct it, except in tests of an exchange. An update is a step of the optimizers, with the gradients of a
    group of one or more batches of each process.

    Attributes:
        step: The number of the batch in its epoch, counted from 1; the same on all processes.
        weight: The factor that the mean loss of the batch on this process is multiplied by. With it, the gradients
            averaged over the processes are the gradients of the mean over all samples of the update.
        ends_group: Whether the batch is the last of its update.
        global_samples: The number of samples in this step on all processes together; None for a custom loader whose
            batch sizes are unknown.
        is_empty: Whether this process has no sample in this step, while other processes have some.
        samples: The number of samples of this process; None for a custom loader whose batch sizes are unknown.
        some_are_empty: Whether any process may have no sample in this step; the same on all processes.
        micro_batch: In a reproducible run, which divides each update by position into the same micro-batches on any
            number of processes, the index of the micro-batch in the update, from 0. None in other runs, and if
            ``is_empty``.
        num_micro_batches: The number of micro-batches of the update in a reproducible run; 0 in other runs.
        starts_group: Whether the batch is the first of its update.

    Example:
        >>> from pa_core.engine.exchange import BatchPlace
        >>> place = BatchPlace(step=3, weight=0.25, ends_group=True, global_samples=8, samples=2)
        >>> place.is_empty, place.starts_group
        (False, False)
    """

    step: int
    weight: float
    ends_group: bool
    global_samples: int | None = None
    is_empty: bool = False
    samples: int | None = None
    some_are_empty: bool = False
    micro_batch: int | None = None
    num_micro_batches: int = 0
    starts_group: bool = False


def micro_batches(
    loader: SizedIterable,
    batches: Iterable[Any],
    *,
    accumulation_steps: int,
    rank: int,
    num_processes: int,
    steps_done: int = 0,
    count: BatchCount | None = None,
) -> Iterator[tuple[BatchPlace, Any]]:
    """Iterate over the batches of an epoch with the place of each in its update.

    Args:
        loader: The loader of the epoch; a keyed loader knows the sizes of its batches.
        batches: The batches of the loader, on the device.
        accumulation_steps: The number of batches of each process in an update; the last group of an epoch may be
            shorter, and is weighted by its samples.
        rank: The rank of this process.
        num_processes: The number of processes.
        steps_done: The number of steps of the epoch before the first batch.
        count: Counts the batches of a custom loader.
    """
    keyed, limit = innermost(loader), batches_of_slices(loader)
    if not is_keyed(keyed):
        count = BatchCount(loader, "training") if count is None else count
        count.given = steps_done
        if count.expected is None:
            return _of_stream(count, batches, accumulation_steps)
        sizes = _known_sizes(loader, num_processes)
        own = _of_custom_loader(count, sizes, batches, accumulation_steps, num_processes)
        return chain(own, _without_samples(count, steps_done, accumulation_steps)) if count.ends_alone else own
    limit = None if limit is None else limit - steps_done
    return _of_keyed_loader(keyed, limit, batches, accumulation_steps, rank, steps_done)


def _of_keyed_loader(
    loader: KeyedDataLoader[Any],
    limit: int | None,
    batches: Iterable[Any],
    accumulation_steps: int,
    rank: int,
    steps_done: int,
) -> Iterator[tuple[BatchPlace, Any]]:
    """Iterate over batches whose sizes the split knows; full updates have the same places, apart from the step."""
    split, arriving = loader.split, iter(batches)
    steps = len(split) if limit is None else min(len(split), limit)
    alike = 0 if split.fixed_batches else min(split.num_full_steps, steps)
    places: list[BatchPlace] = []
    for first in range(0, steps, accumulation_steps):
        if not places or first + accumulation_steps > alike:
            places = _places_of_group(loader, first, min(accumulation_steps, steps - first), rank)
        step = steps_done + first
        for place in places:
            step += 1
            yield BatchPlace(step, *place[1:]), None if place.is_empty else next(arriving)


def _places_of_group(loader: KeyedDataLoader[Any], first: int, length: int, rank: int) -> list[BatchPlace]:
    """Return the places of the batches of an update, whose steps are counted from the first of them."""
    split = loader.split
    share = 1 if split.fixed_batches else split.num_processes  # gradients are added up, or averaged
    block, num_micro_batches = split.micro_batches(first, rank)
    full, size_of_full = split.num_full_steps, split.batch_size * split.num_processes
    steps = range(first, first + length)
    sizes = [size_of_full if step < full else split.size(step) for step in steps]
    of_process = [split.batch_size if step < full else len(split.piece(step, rank)) for step in steps]
    total = sum(sizes)
    return [
        BatchPlace(
            number + 1,
            weight=mine * share / total,
            ends_group=number + 1 == length,
            global_samples=size,
            is_empty=mine == 0,
            samples=mine,
            some_are_empty=first + number >= full and not split.piece(first + number, split.num_processes - 1),
            micro_batch=block[number] if number < len(block) else None,
            num_micro_batches=num_micro_batches,
            starts_group=number == 0,
        )
        for number, (size, mine) in enumerate(zip(sizes, of_process, strict=True))
    ]


def _known_sizes(loader: SizedIterable, num_processes: int) -> Callable[[int], int] | None:
    """Return a function for the number of samples of a step, if the sampler of a custom data loader determines it.

    With several processes, accelerate fills up the last batches, so that all have the same size. A sampler that splits
    the samples itself has the same number for each process.
    """
    custom = innermost(loader)
    sampler = getattr(custom, "batch_sampler", None)
    is_split = num_processes == 1 or split_sampler(custom) is not None
    if not is_split or not isinstance(sampler, BatchSampler):
        return None
    samples: Any = sampler.sampler
    try:
        total = len(samples)
    except (TypeError, NotImplementedError):
        return None
    return lambda step: max(1, min(sampler.batch_size, total - step * sampler.batch_size))


def _of_custom_loader(
    count: BatchCount,
    size: Callable[[int], int] | None,
    batches: Iterable[Any],
    accumulation_steps: int,
    num_processes: int,
) -> Iterator[tuple[BatchPlace, Any]]:
    """Iterate over batches of unknown sizes, which have equal weights in their group.

    Within a group a batch is read ahead, so that the last group is closed even if the length was wrong, unless other
    processes may have more batches. Between two updates no batch is read ahead, so that a training state need not
    contain it; but the loader reaches its end with the last batch, because it may draw random numbers for that. Batches
    beyond its length are ignored.
    """
    arriving, expected = iter(batches), cast("int", count.expected)
    first = count.given
    batch = next(arriving, _END)
    while batch is not _END and count.given < expected:
        step, group = count.given, range(first, min(first + accumulation_steps, expected))
        is_full = step + 1 == first + accumulation_steps
        is_last = step + 1 == expected
        upcoming = _NOT_YET if is_full and not is_last else next(arriving, _END)
        place = BatchPlace(
            step + 1,
            weight=1 / len(group) if size is None else size(step) / sum(map(size, group)),
            ends_group=is_full or is_last or (upcoming is _END and not count.ends_alone),
            global_samples=None if size is None else size(step) * num_processes,
            samples=None if size is None else size(step),
            some_are_empty=count.may_differ,
            starts_group=step == first,
        )
        count.given += 1
        count.has_more = is_last and upcoming is not _END
        first = count.given if is_full else first
        yield place, batch
        batch = next(arriving, _END) if upcoming is _NOT_YET else upcoming
    count.has_ended = batch is _END


def _of_stream(count: BatchCount, batches: Iterable[Any], accumulation_steps: int) -> Iterator[tuple[BatchPlace, Any]]:
    """Iterate over the batches of a stream of unknown length; each process may have its own stream.

    The batches of an update are fetched together, and the processes exchange how many batches they have. The epoch ends
    when no process has any. The weights of batches follow from the counted samples; see `Accumulation`.
    """
    arriving, step = iter(batches), count.given
    while True:
        group = deque(islice(arriving, accumulation_steps))
        of_each = gather_objects(len(group)) if count.is_per_process else [len(group)]
        fewest, most = min(of_each), max(of_each)
        if most == 0:
            break
        for number in range(most):
            step += 1
            count.given = step
            place = BatchPlace(
                step,
                weight=1 / accumulation_steps if group else 0.0,
                ends_group=number + 1 == most,
                is_empty=not group,
                some_are_empty=number >= fewest,
                starts_group=number == 0,
            )
            yield place, group.popleft() if group else None
    count.has_ended = True


def _without_samples(count: BatchCount, first: int, accumulation_steps: int) -> Iterator[tuple[BatchPlace, Any]]:
    """Yield steps without samples, in which other processes may still have batches."""
    expected = cast("int", count.expected)
    for step in range(count.given, expected):
        ends_group = (step + 1 - first) % accumulation_steps == 0 or step + 1 == expected
        starts_group = (step - first) % accumulation_steps == 0
        may_differ = count.may_differ
        yield (
            BatchPlace(step + 1, 0.0, ends_group, is_empty=True, some_are_empty=may_differ, starts_group=starts_group),
            None,
        )
