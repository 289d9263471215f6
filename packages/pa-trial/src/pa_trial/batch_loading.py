"""Loading the batches of a trial, in this process or in workers: the same batches, and the same random draws."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import starmap
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset
from typing_extensions import override

from pa_core.parts import (
    BatchFetcher,
    SampleFetcher,
    WholeBatchFetcher,
    WorkerDataset,
    WorkerStart,
    can_fetch_batch,
    can_pin_memory,
    explaining_failed_start,
    pin_memory,
    sigterm_held_back,
)
from pa_data import is_in_memory
from pa_data.errors import UnsupportedConfigurationError
from pa_data.rng import extend_key, mix, preserve_rng_state, seed_rng
from pa_trial.batch_order import BatchRequest, EpochOrders, SamplerOrder
from pa_trial.random_draws import RngStates

_WORKER_STREAMS = -2  # extends the seed where no epoch does
_END = object()


@dataclass(frozen=True)
class BatchShare:
    """Which batches of the endless sequence a loader yields.

    Attributes:
        order: The sequence.
        first: The number of the first batch.
        stride: The distance to the next one.
        repeat: Whether there is a next one after the first epoch.
    """

    order: EpochOrders | SamplerOrder
    first: int
    stride: int
    repeat: bool

    def requests(self) -> Iterator[BatchRequest]:
        """Yield what each batch is made from."""
        return self.order.requests(self.first, self.stride, repeat=self.repeat)


class KeyedBatches(DataLoader[Any]):
    """A loader of torch that yields some of the batches of an endless sequence, each as a function of its number.

    The global RNGs are seeded for each sample, so that random draws depend neither on the number of workers nor on
    where the iteration began. The RNGs of this process are not changed. Each iteration begins with the same batch.

    Args:
        share: Which batches.
        like: The loader whose dataset, collation and workers are used.
        custom_collation: Whether ``like`` was given a ``collate_fn``.
        length: Has the length of this loader.
    """

    def __init__(self, share: BatchShare, like: DataLoader[Any], *, custom_collation: bool, length: Sized) -> None:
        open_types: Any = like  # torch leaves the types of most attributes open
        self._share = share
        self._own_generator = torch.Generator()
        self._worker_options: dict[str, Any] = {
            "num_workers": like.num_workers,
            "pin_memory": like.pin_memory,
            "timeout": like.timeout,
            "multiprocessing_context": open_types.multiprocessing_context,
            "generator": self._own_generator,
            "prefetch_factor": like.prefetch_factor,
            "persistent_workers": like.persistent_workers,
        }
        super().__init__(  # pyright: ignore[reportUnknownMemberType]  # torch leaves its options open
            like.dataset,
            batch_sampler=_IndicesOfShare(share, length),
            collate_fn=open_types.collate_fn,
            worker_init_fn=like.worker_init_fn,
            **self._worker_options,
        )
        self._collate: Callable[[list[Any]], Any] = open_types.collate_fn
        self._whole = can_fetch_batch(like.dataset) and not custom_collation
        self._keyed = custom_collation or not (self._whole or _cannot_draw(like.dataset))
        self._fetcher = self._make_fetcher(keyed=self._keyed)
        self._unkeyed_fetcher = self._make_fetcher(keyed=False)
        self._states = RngStates()
        self._draws: bool | None = None
        self._pins = like.pin_memory and can_pin_memory()
        self._worker_loader: DataLoader[Any] | None = None
        self._received: weakref.ref[Generator[Any]] | None = None
        self._iterations = 0

    @override
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # torch promises its private iterator class
        """Iterate over the batches of the share, from the first one on."""
        if self.num_workers > 0:
            return self._load_in_workers()
        batches = self._load_here()
        return map(pin_memory, batches) if self._pins else batches

    def close(self) -> None:
        """End the workers now, instead of with the iterator or the loader."""
        received = None if self._received is None else self._received()
        if received is not None:
            received.close()
        self._worker_loader = None
        self._iterations += 1

    def _make_fetcher(self, *, keyed: bool) -> BatchFetcher:
        dataset, collate_fn = self.dataset, self._collate
        if isinstance(self._share.order, SamplerOrder):
            return _ListFetcher(dataset, collate_fn, whole=self._whole, keyed=keyed)
        if self._whole:
            return WholeBatchFetcher(dataset)
        return SampleFetcher(dataset, collate_fn, keyed=keyed)

    def _load_here(self) -> Iterator[Any]:
        requests = self._share.requests()
        return starmap(self._fetch_detecting_draws if self._keyed else self._fetcher, requests)

    def _fetch_detecting_draws(self, key: int, indices: Any) -> Any:
        """Fetch a batch, without keys as long as nothing was seen to draw from the global RNGs."""
        if self._draws is False:
            self._states.capture()
            batch = self._unkeyed_fetcher(key, indices)
            if not self._states.have_changed():
                return batch
            self._states.restore()
            self._draws = True
        with preserve_rng_state():
            batch = self._fetcher(key, indices)
            if self._draws is None:
                self._draws = self._drew_last(key, indices)
        return batch

    def _drew_last(self, key: int, indices: Any) -> bool:
        """Whether the last sample of a batch that was just fetched, or the collation, drew."""
        self._states.capture()
        last = int(indices[-1]) if isinstance(indices, Tensor) else len(indices) - 1
        seed_rng(extend_key(key, last))
        return self._states.have_changed()

    def _load_in_workers(self) -> Iterator[Any]:
        if self._worker_loader is None:
            self._worker_loader = self._make_worker_loader()
        self._own_generator.manual_seed(extend_key(mix(self._share.order.seed), _WORKER_STREAMS))
        self._iterations += 1
        with sigterm_held_back(), self._explaining_failed_start():
            batches = iter(self._worker_loader)
        received = self._receive(batches, self._iterations)
        self._received = weakref.ref(received)
        return received

    def _receive(self, batches: Iterator[Any], iteration: int) -> Generator[Any]:
        start: AbstractContextManager[None] = self._explaining_failed_start()
        while True:
            if self.persistent_workers and iteration != self._iterations:
                problem = "The persistent workers serve a newer iterator than this one."
                raise UnsupportedConfigurationError(problem, do="Use that one, or pass persistent_workers=False.")
            with start:
                batch = next(batches, _END)
            start = nullcontext()
            if batch is _END:
                return
            yield batch

    def _explaining_failed_start(self) -> AbstractContextManager[None]:
        sent: dict[str, object] = {name: getattr(self, name) for name in ("dataset", "collate_fn", "worker_init_fn")}
        return explaining_failed_start(self._worker_options["multiprocessing_context"], sent)

    def _make_worker_loader(self) -> DataLoader[Any]:
        """Make the plain loader that runs the workers; they are sent whole batches to make."""
        dataset_in_worker = _ListsInWorker if isinstance(self._fetcher, _ListFetcher) else WorkerDataset
        return DataLoader(
            dataset_in_worker(self._fetcher, self.dataset),
            batch_size=None,
            sampler=_RequestsOfShare(self._share),
            collate_fn=_as_it_is,
            worker_init_fn=WorkerStart(self.worker_init_fn),
            **self._worker_options,
        )


class _IndicesOfShare(BatchSampler):
    """The batch sampler that users see: the indices of each batch."""

    def __init__(self, share: BatchShare, length: Sized) -> None:
        self._share = share
        self._length = length
        for name in ("sampler", "batch_size", "drop_last"):
            if hasattr(length, name):
                setattr(self, name, getattr(length, name))

    @override
    def __len__(self) -> int:
        return len(self._length)

    @override
    def __iter__(self) -> Iterator[list[Any]]:
        return (_listed(indices) for _, indices in self._share.requests())


@dataclass(frozen=True)
class _RequestsOfShare:
    """What the workers are sent."""

    share: BatchShare

    def __iter__(self) -> Iterator[BatchRequest]:
        return ((key, _listed(indices)) for key, indices in self.share.requests())


@dataclass(frozen=True)
class _ListFetcher:
    """Fetches the samples of a custom sampler: indices of any kind, in any order and number.

    Attributes:
        dataset: The dataset.
        collate_fn: Makes a batch of the samples.
        whole: Whether batches are fetched whole, where the indices are integers.
        keyed: Whether the RNGs are seeded for each sample, by its place in the batch.
    """

    dataset: Dataset[Any]
    collate_fn: Callable[[list[Any]], Any]
    whole: bool
    keyed: bool

    def __call__(self, key: int, indices: Any, draws: Sequence[int] | None = None) -> Any:
        """Return the batch of the samples at ``indices``."""
        indices = _listed(indices)
        if self.whole:
            numbers = _as_positions(indices, len(cast("Sized", self.dataset)))
            if numbers is not None:
                return WholeBatchFetcher(self.dataset)(key, numbers)
        return self.collate_fn([self._sample(extend_key(key, place), index) for place, index in enumerate(indices)])

    def _sample(self, key: int, index: Any) -> Any:
        if self.keyed:
            seed_rng(key)
        try:
            return self.dataset[index]
        except Exception as error:
            error.add_note(f"Raised for sample {index!r} of {type(self.dataset).__name__}.")
            raise


class _ListsInWorker(WorkerDataset):
    """The data that workers index for a custom sampler."""

    @override
    def __getitem__(self, index: tuple[Any, ...]) -> Any:
        return self.fetcher(*index)


def _as_positions(indices: Sequence[Any], num_samples: int) -> Tensor | None:
    """Indices as a tensor, those that count from the end included; None where they are not integers."""
    if not all(isinstance(index, int) for index in indices):
        return None
    positions = torch.tensor(indices, dtype=torch.int64)
    return torch.where(positions < 0, positions + num_samples, positions)


def _cannot_draw(dataset: Dataset[Any]) -> bool:
    kind: type = type(dataset)
    return kind in (list, tuple, range) or is_in_memory(dataset)


def _listed(indices: Any) -> list[Any]:
    return indices.tolist() if isinstance(indices, Tensor) else indices  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # open in torch


def _as_it_is(batch: Any) -> Any:
    return batch
