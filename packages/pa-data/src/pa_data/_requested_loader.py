"""A loader whose batches are each made on request, in this process or in workers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import starmap
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar, cast

import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from typing_extensions import Unpack, override

from pa_data._fetching import (
    BatchFetcher,
    BatchRequest,
    SampleFetcher,
    WholeBatchFetcher,
    WorkerDataset,
    can_fetch_batch,
    can_pin_memory,
    collate,
    listed,
    pin_memory,
    tell_epoch,
)
from pa_data._workers import WorkerStart, explaining_failed_start, hinting_at_long_wait, sigterm_held_back
from pa_data.drawn_state import StateInWorkers
from pa_data.errors import DataError
from pa_data.rng import preserve_rng_state

if TYPE_CHECKING:
    from pa_data.state_search import Snapshot

__all__ = ["BatchRequests", "LoadingOptions", "RequestedDataLoader"]

_SampleT_co = TypeVar("_SampleT_co", covariant=True)
_END = object()


class BatchRequests(Protocol):
    """The batches of a ``RequestedDataLoader``: an object with their requests and their indices.

    Implement it if no order determines your batches, for example if a service decides which samples come next. If a
    seed and an epoch determine them, use a ``KeyedDataLoader``, which needs no such object. Your class need not derive
    from this class. It has three methods: ``requests`` for the loader, which makes each batch from its request;
    ``__len__`` for ``len(loader)``; and ``__iter__``, which yields the indices alone, as a torch batch sampler does,
    for code that looks at ``loader.batch_sampler``. All three are called in the main process only.

    Example:
        >>> from collections.abc import Iterator
        >>> from pa_data import BatchRequest, BatchRequests, RequestedDataLoader
        >>> from pa_data.rng import mix
        >>> class Pairs:
        ...     def __init__(self, pairs: list[list[int]]) -> None:
        ...         self.pairs = pairs
        ...     def requests(self) -> Iterator[BatchRequest]:
        ...         for number, indices in enumerate(self.pairs):
        ...             yield mix(7, number), indices, None  # the key, the indices, the draws
        ...     def __len__(self) -> int:
        ...         return len(self.pairs)
        ...     def __iter__(self) -> Iterator[list[int]]:
        ...         return iter(self.pairs)
        >>> batches: BatchRequests = Pairs([[3, 4], [0, 9]])
        >>> [batch.tolist() for batch in RequestedDataLoader(range(10), batches)]
        [[3, 4], [0, 9]]
    """

    def requests(self) -> Iterator[BatchRequest]:
        """Return the requests of an iteration, which may be endless; implement it in your class.

        The loader calls it once for each iteration over its batches, in the main process, and takes the next request
        when a batch is needed. With workers, it takes ``num_workers * prefetch_factor`` requests ahead. An error that
        the iterator raises is raised in the loop. A request is a tuple of

        - the key, an integer as ``pa_data.rng.mix`` returns it, which seeds the random augmentation of the batch;
        - the indices of the samples of the batch in the dataset, as a list or an int64 tensor;
        - the draws: a number for each sample, which extends the key, so that samples of a batch get different random
          numbers. With None, the indices serve as these numbers. Pass positions if an index may come twice.

        Returns:
            An iterator over the requests, in the order of the batches.

        Example:
            >>> from collections.abc import Iterator
            >>> from pa_data import BatchRequest
            >>> from pa_data.rng import mix
            >>> class Pairs(list[list[int]]):
            ...     def requests(self) -> Iterator[BatchRequest]:
            ...         return ((mix(number), pair, None) for number, pair in enumerate(self))
            >>> [indices for key, indices, draws in Pairs([[3, 4], [0, 9]]).requests()]
            [[3, 4], [0, 9]]
        """
        ...

    def __len__(self) -> int:
        """Return the number of batches of an iteration, which is the length of the loader."""
        ...

    def __iter__(self) -> Iterator[list[Any]]:
        """Return an iterator over the indices of each batch, as lists, without keys and draws."""
        ...


class LoadingOptions(TypedDict, total=False):
    """The options of torch's ``DataLoader`` that determine how batches are loaded, with torch's defaults.

    A typed dictionary in which every entry may be left out. Use it as the type of options that your own function or
    class passes to a ``KeyedDataLoader`` or a ``RequestedDataLoader``, as ``**options`` or ``Unpack[LoadingOptions]``.

    Attributes:
        num_workers: The number of worker processes. 0, the default, loads in the main process.
        collate_fn: A function that combines a list of samples into a batch. None, the default, uses torch's own.
        pin_memory: Whether to copy each batch to pinned memory, so that moving it to an accelerator does not block.
            False by default.
        timeout: The number of seconds to wait for a worker. 0, the default, waits forever.
        worker_init_fn: A function that is called in each worker with its number. None by default.
        multiprocessing_context: How workers are started: ``"fork"``, ``"spawn"``, ``"forkserver"`` or a context of
            ``multiprocessing``. None, the default, uses the method of this process.
        generator: A generator that seeds the workers. By default, None, the loader has its own.
        prefetch_factor: The number of batches that each worker loads ahead. None, the default, means 2 with workers;
            without workers it must be None.
        persistent_workers: Whether to keep the workers for the next iteration. False by default.
        pin_memory_device: The kind of device for which memory is pinned. The default, an empty string, means the
            current accelerator.

    Example:
        >>> from pa_data import KeyedDataLoader, LoadingOptions
        >>> options: LoadingOptions = {"num_workers": 1, "prefetch_factor": 4}
        >>> KeyedDataLoader(range(8), batch_size=4, **options).prefetch_factor
        4
    """

    num_workers: int
    collate_fn: Callable[[list[Any]], Any] | None
    pin_memory: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: str | BaseContext | None
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str


class RequestedDataLoader(DataLoader[_SampleT_co]):
    """A ``torch.utils.data.DataLoader`` in which each batch depends only on its request.

    Most users want a ``KeyedDataLoader``, which derives from this class and makes the requests itself. Use this class
    if the choice of batches follows different rules. Since a batch depends only on its request, it is the same with any
    number of workers, and can be made again after a resume. The loader keeps no position, so save the progress of your
    requests yourself.

    Args:
        dataset: A dataset with samples at integer indices.
        batches: The requests of the batches: an object with ``requests``, ``__len__`` and ``__iter__``.
        worker_key: The seed of the random number generators of workers, unless you pass a ``generator``. The default is
            0. Samples with keyed augmentation do not depend on it, so it rarely matters.
        keyed_augmentation: Whether the global random number generators of Python, NumPy and torch are seeded for each
            sample, from the key of its request. The default is True. With False the draws are not reproducible, and a
            dataset with ``__getitems__`` reads all samples of a batch at once.
        whole_batches: Whether batches are read with ``fetch_batch`` of the dataset. By default they are if the dataset
            supports it and there is no ``collate_fn``. True raises an error if this is impossible, and False reads
            sample by sample.
        options: The options of torch's ``DataLoader``, for example ``num_workers``; see ``LoadingOptions``.

    Attributes:
        keyed_augmentation: Whether the global random number generators are seeded for each sample.
        whole_batches: Whether batches are read with ``fetch_batch``.

    Raises:
        DataError: ``whole_batches=True`` is impossible for this dataset. Iterating raises it if the workers cannot
            start or cannot send a batch.
        RuntimeError: With ``persistent_workers=True``, an older iterator raises it if the loader was iterated again or
            closed.
        TypeError: There is an option that torch's ``DataLoader`` does not have.

    Example:
        >>> from collections.abc import Iterator
        >>> from pa_data import BatchRequest, RequestedDataLoader
        >>> from pa_data.rng import mix
        >>> class Pairs(list[list[int]]):
        ...     def requests(self) -> Iterator[BatchRequest]:
        ...         return ((mix(number), pair, None) for number, pair in enumerate(self))
        >>> loader = RequestedDataLoader(range(10), Pairs([[3, 4], [0, 9]]))
        >>> [batch.tolist() for batch in loader]
        [[3, 4], [0, 9]]
    """

    def __init__(
        self,
        dataset: Dataset[_SampleT_co],
        batches: BatchRequests,
        *,
        worker_key: int = 0,
        keyed_augmentation: bool = True,
        whole_batches: bool | None = None,
        **options: Unpack[LoadingOptions],
    ) -> None:
        collate_fn = options.get("collate_fn")
        self._own_generator = torch.Generator()
        if options.get("generator") is None:
            options["generator"] = self._own_generator
        self._options = options
        self._requested, self._worker_key = batches, worker_key
        self.keyed_augmentation: bool = keyed_augmentation
        self.whole_batches: bool = _decide_whole_batches(dataset, collate_fn, whole_batches)
        super().__init__(dataset, batch_sampler=batches, **options)  # pyright: ignore[reportUnknownMemberType]  # torch leaves its options open
        self._fetcher: BatchFetcher = (
            WholeBatchFetcher(dataset)
            if self.whole_batches
            else SampleFetcher(dataset, collate_fn or collate, keyed_augmentation)
        )
        self._pins = self.pin_memory and can_pin_memory()
        self._worker_loader: DataLoader[Any] | None = None
        self._state_in_workers: StateInWorkers | None = None
        self._sent: Snapshot | None = None
        self._iterations = 0

    @property
    def moved_in_workers(self) -> list[str]:
        """The generators and counters of the dataset or of ``collate_fn`` that have changed in workers, by place.

        A list of texts such as ``["dataset.generator"]``; it is empty without workers, and before the first batch. The
        list grows while workers load their first batches; later changes are not noticed. A resumed run would not
        continue these values, since its workers begin with new copies of the dataset. Use the list to print a warning
        after the first epoch. To avoid the problem, draw from the global generators, which are seeded for each sample
        and are not included.
        """
        return [] if self._state_in_workers is None else self._state_in_workers.noted()

    def close(self) -> None:
        """End persistent workers now, instead of when the loader is deleted.

        You call it to free their memory, for example before an evaluation, or after changing the dataset. With
        persistent workers, older iterators can no longer be used, and raise a ``RuntimeError`` for the next batch. The
        next iterator starts new workers. Without persistent workers the call has no effect.

        Example:
            >>> from pa_data import KeyedDataLoader
            >>> loader = KeyedDataLoader(range(4), batch_size=2, num_workers=1, persistent_workers=True)
            >>> [batch.tolist() for batch in loader]
            [[0, 1], [2, 3]]
            >>> loader.close()
        """
        self._worker_loader = None
        self._iterations += 1

    @override
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # torch promises its private iterator class
        """Return an iterator over the requested batches; a ``for`` loop calls it."""
        return self._iterate(None)

    def _iterate(self, epoch: int | None) -> Iterator[Any]:
        """Iterate over the batches of an epoch; if it has a number, datasets are told the number."""
        if self.num_workers > 0 and self.persistent_workers:
            self._send_changes()
        if epoch is not None:
            tell_epoch(self.dataset, self._fetcher, epoch)
        if self.num_workers > 0:
            return self._load_in_workers(epoch)
        draws = isinstance(self._fetcher, SampleFetcher) and self._fetcher.draws_itself
        batches = starmap(self._fetch_preserving_rngs if draws else self._fetcher, self._requested.requests())
        return map(pin_memory, batches) if self._pins else batches

    def _fetch_preserving_rngs(self, *request: Any) -> Any:
        with preserve_rng_state():
            return self._fetcher(*request)

    def _send_changes(self) -> None:
        """End persistent workers if the dataset or the collate function has changed since they were started."""
        if self._sent is not None and self._sent.changed(self._state()):
            self.close()

    def _state(self) -> Snapshot:
        from pa_data.state_search import Snapshot  # of no use without workers

        collate_fn = cast("Any", self.collate_fn)  # pyright: ignore[reportUnknownMemberType]  # not typed by torch
        return Snapshot({"dataset": self.dataset, "collate_fn": collate_fn})

    def _load_in_workers(self, epoch: int | None) -> Iterator[Any]:
        if self._worker_loader is None:
            self._worker_loader = self._make_worker_loader()
        if self.persistent_workers:
            self._sent = self._state()
        cast("Any", self._worker_loader).sampler.epoch = epoch
        self._own_generator.manual_seed(self._worker_key)
        self._iterations += 1
        with sigterm_held_back(), self._explaining_failed_start():
            batches = iter(self._worker_loader)
        return self._receive(batches, self._iterations)

    @contextmanager
    def _starting(self) -> Generator[None]:
        """Explain errors and long waits until workers have made their first batch."""
        with self._explaining_failed_start(), hinting_at_long_wait(self._options.get("multiprocessing_context")):
            yield

    def _explaining_failed_start(self) -> AbstractContextManager[None]:
        sent: dict[str, object] = {name: getattr(self, name) for name in ("dataset", "collate_fn", "worker_init_fn")}
        return explaining_failed_start(self._options.get("multiprocessing_context"), sent)

    def _receive(self, batches: Iterator[Any], iteration: int) -> Iterator[Any]:
        start: AbstractContextManager[None] = self._starting()
        while True:
            if self.persistent_workers and iteration != self._iterations:
                raise RuntimeError(
                    "This iterator is out of date. Got an iterator of a loader with persistent_workers=True that was "
                    "iterated again, or closed. Use the newest iterator, or make the loader with "
                    "persistent_workers=False."
                )
            with start:
                batch = next(batches, _END)
            start = nullcontext()
            if batch is _END:
                return
            yield batch

    def _make_worker_loader(self) -> DataLoader[Any]:
        """Return the plain loader that runs the workers, which make whole batches."""
        parts: dict[str, object] = {"dataset": self.dataset, "collate_fn": self._options.get("collate_fn")}
        self._state_in_workers = StateInWorkers(parts)
        dataset = WorkerDataset(self._fetcher, self.dataset, self._state_in_workers)
        start = cast("Callable[[int], None]", WorkerStart(self.worker_init_fn))  # which mypy takes for a tuple alone
        options: LoadingOptions = {**self._options, "collate_fn": _as_it_is, "worker_init_fn": start}
        return DataLoader(dataset, batch_size=None, sampler=_WorkerRequests(self._requested), **options)


class _WorkerRequests(Sampler[tuple[BatchRequest, int | None]]):
    """The requests in the form in which they are sent to workers, with their epoch."""

    def __init__(self, batches: BatchRequests) -> None:
        self._batches = batches
        self.epoch: int | None = None

    @override
    def __iter__(self) -> Iterator[tuple[BatchRequest, int | None]]:
        epoch = self.epoch
        return (((key, listed(indices), draws), epoch) for key, indices, draws in self._batches.requests())


def _decide_whole_batches(
    dataset: Dataset[Any], collate_fn: Callable[[list[Any]], Any] | None, asked_for: bool | None
) -> bool:
    """Return whether batches are read whole; raise an error if that is required and impossible."""
    possible = collate_fn is None and can_fetch_batch(dataset)
    if asked_for is None:
        return possible
    if asked_for and not possible:
        raise DataError(
            "Only tensors in memory and datasets with fetch_batch are fetched whole, and without collate_fn. Got "
            f"whole_batches=True, a dataset of type {type(dataset).__name__}, and collate_fn={collate_fn}. Give the "
            "dataset a method fetch_batch, leave collate_fn out, or leave whole_batches out."
        )
    return asked_for


def _as_it_is(batch: Any) -> Any:
    return batch
