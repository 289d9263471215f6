"""The data loader of trials, which describes the loading; training decides on its start and its share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from multiprocessing.context import BaseContext
from typing import Any, Generic, cast

import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, Sampler
from torch.utils.data import DataLoader as TorchDataLoader
from typing_extensions import TypeVar

from pa_data import LoadingOptions, RequestedDataLoader
from pa_data.rng import extend_key, mix
from pa_trial.batch_order import KeyedShare, find_order
from pa_trial.errors import ConfigurationError
from pa_trial.samplers import DistributedBatchSampler, RepeatBatchSampler, SkipBatchSampler

_WORKER_STREAMS = -2  # extends the seed, in place of an epoch
_SampleT = TypeVar("_SampleT", default=Any)


class DataLoader(Generic[_SampleT]):
    """The data loader that a trial returns from its ``build_*_data_loader`` methods.

    It has the same arguments, defaults and checks as torch's ``DataLoader``. ``fit`` divides its batches among the
    processes, so pass the batch size of a single process and no ``DistributedSampler``. For an ``IterableDataset``,
    return a torch loader, after ``context.experimental.disable_dataset_reproducibility_checks()``.

    In training, the random order of an epoch depends only on the seed of the run and the epoch number; random
    augmentation also depends on the sample. Therefore, all processes use the same order, and a resumed training uses
    the same samples as an uninterrupted training, without loading earlier samples again. You can also iterate over it
    yourself: ``len()`` and ``iter()`` are over all batches, without sharding.

    Args:
        dataset: A dataset with a length, whose samples are accessed by index.
        batch_size: The number of samples in a batch on each process; pass ``context.get_per_slot_batch_size()``.
        shuffle: Whether each epoch has a different random order. Pass True for training; the default, False, suits
            validation.
        sampler: A sampler that determines the order instead of ``shuffle``. It is iterated over again for each epoch.
        batch_sampler: A batch sampler that determines the batches. If you pass it, leave out ``batch_size``,
            ``shuffle``, ``sampler`` and ``drop_last``.
        num_workers: The number of processes that load samples in advance. With the default, 0, samples are loaded in
            this process, which is right for data in memory.
        collate_fn: Makes a batch from a list of samples; by default torch's own collation, which stacks tensors.
        pin_memory: Whether to copy batches into pinned memory, from which they are copied to a GPU faster. The default
            is False, because pinning takes memory and has no use on a CPU.
        drop_last: Whether to leave out the samples that do not fill a batch; by default, they form a smaller batch.
        timeout: The number of seconds to wait for a worker; 0, the default, waits forever.
        worker_init_fn: Called in each worker with its number, from 0.
        multiprocessing_context: How workers are started, such as ``"fork"``; by default, in the same way as torch
            starts them on this system.
        generator: A generator whose seed determines the random order. By default, the seed of the run determines it.
        prefetch_factor: The number of batches that each worker loads ahead; by default 2.
        persistent_workers: Whether to keep validation workers for the next validation. Training workers always persist.

    Attributes:
        dataset: As passed.
        batch_size: As passed; None with a ``batch_sampler``.
        num_workers: As passed.
        sampler: The sampler that decides the order of the samples.
        batch_sampler: The batch sampler that decides the batches.
        collate_fn: The function that makes a batch.
        pin_memory: As passed.
        drop_last: As passed.
        timeout: As passed.
        worker_init_fn: As passed.
        multiprocessing_context: As passed.
        generator: As passed.
        prefetch_factor: As passed, or 2 if there are workers.
        persistent_workers: As passed.

    Raises:
        ConfigurationError: The dataset is an ``IterableDataset``, or there is neither a batch size nor a batch sampler.
            The error is also a ``ValueError``.
        ValueError: From torch, if options contradict each other.

    Example:
        >>> from pa_trial import DataLoader
        >>> loader = DataLoader(range(5), batch_size=2)
        >>> len(loader), [batch.tolist() for batch in loader]
        (3, [[0, 1], [2, 3], [4]])
    """

    def __init__(
        self,
        dataset: Dataset[_SampleT],
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[Sequence[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[_SampleT]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> None:
        if isinstance(dataset, IterableDataset):
            raise ConfigurationError(
                "An IterableDataset is not supported, because its batches cannot be sharded or skipped.",
                do="Return a DataLoader of torch, after context.experimental.disable_dataset_reproducibility_checks().",
            )
        if batch_size is None and batch_sampler is None:
            problem = "The data loader of a trial has to make batches, got batch_size=None and no batch_sampler."
            raise ConfigurationError(problem, do="Pass a size, such as context.get_per_slot_batch_size().")
        self._loading: LoadingOptions = {
            "num_workers": num_workers,
            "collate_fn": collate_fn,
            "pin_memory": pin_memory,
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
            "generator": generator,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
        }
        # Checks the options, and has torch's defaults for them.
        self._checked: TorchDataLoader[_SampleT] = TorchDataLoader(
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=cast("Any", batch_sampler),
            drop_last=drop_last,
            **self._loading,
        )
        checked = cast("Any", self._checked)
        self.dataset: Dataset[_SampleT] = dataset
        self.batch_size: int | None = checked.batch_size
        self.num_workers: int = num_workers
        self.sampler: Sampler[Any] | Iterable[Any] = checked.sampler
        self.batch_sampler: BatchSampler | Iterable[Sequence[Any]] = checked.batch_sampler
        self.collate_fn: Callable[[list[_SampleT]], Any] = checked.collate_fn
        self.pin_memory: bool = pin_memory
        self.drop_last: bool = checked.drop_last
        self.timeout: float = timeout
        self.worker_init_fn: Callable[[int], None] | None = worker_init_fn
        self.multiprocessing_context: str | BaseContext | None = checked.multiprocessing_context
        self.generator: torch.Generator | None = generator
        self.prefetch_factor: int | None = checked.prefetch_factor
        self.persistent_workers: bool = persistent_workers

    def get_data_loader(
        self,
        repeat: bool = False,
        skip: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
        *,
        seed: int | None = None,
    ) -> TorchDataLoader[Any]:
        """Return a torch loader over the share of a process; ``fit`` calls it.

        Call it yourself to look at the batches of a process, or in your own loop. Batches are first repeated, then
        divided among the processes, and then skipped. If the number of batches is not a multiple of the number of
        processes, a process therefore gets different batches in the next epoch.

        Args:
            repeat: Whether the batches are repeated without end, as in training. The default, False, yields a single
                epoch.
            skip: The number of batches of this process that are left out at the beginning, to resume.
            num_replicas: The number of processes that share the batches: batch i is for process ``i % num_replicas``.
                The default, 1, yields all batches.
            rank: The number of this process, from 0.
            seed: The seed that determines the random order and the random numbers of augmentation, as in training. By
                default, the global random number generators determine them, as in a torch loader, and the processes
                have the same order only if these generators have the same seeds.

        Returns:
            A ``torch.utils.data.DataLoader``.

        Raises:
            ConfigurationError: There is no such share, or ``skip`` is negative. The error is also a ``ValueError``.

        Example:
            >>> from pa_trial import DataLoader
            >>> loader = DataLoader(range(8), batch_size=2)
            >>> [batch.tolist() for batch in loader.get_data_loader(num_replicas=2, rank=1)]
            [[2, 3], [6, 7]]
        """
        batches = DistributedBatchSampler(
            RepeatBatchSampler(self.batch_sampler) if repeat else self.batch_sampler, num_replicas, rank
        )
        if seed is None:
            return TorchDataLoader(self.dataset, batch_sampler=SkipBatchSampler(batches, skip), **self._loading)
        order_seed = seed if self.generator is None else self.generator.initial_seed()
        order = find_order(self._checked, order_seed=order_seed, seed=seed)
        options: LoadingOptions = {**self._loading, "generator": None}
        return RequestedDataLoader(
            self.dataset,
            KeyedShare(batches, skip, order, repeat),
            worker_key=extend_key(mix(seed), _WORKER_STREAMS),
            **options,
        )

    def __len__(self) -> int:
        """Return the number of batches of an epoch, over all processes."""
        return len(cast("Sized", self.batch_sampler))

    def __iter__(self) -> Iterator[Any]:
        """Iterate over all batches once, as a loader of torch does."""
        return iter(self.get_data_loader())
