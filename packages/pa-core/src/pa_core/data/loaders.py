"""The loaders of a run: creating them, splitting them over the processes, counting their batches."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from pa_core import _accelerate
from pa_core.data.batch_count import BatchCount, require_same_lengths
from pa_core.data.batch_limit import DataLoaderSlice
from pa_core.data.custom_loader import (
    check_loader,
    count_steps,
    describe_loader,
    innermost,
    is_dataloader,
    is_keyed,
    is_slice,
    is_stream_with_state,
    length_of,
    plain_dataloader,
)
from pa_core.data.data_arguments import (
    DataArgument,
    batch_size_of,
    describe_lost_order,
    order_that_makes_batches,
    without_effect_on_loader,
)
from pa_core.data.split_sampler import (
    OWN_SHARE,
    check_share,
    divided_by_trainer,
    share_of,
    state_own_share,
    states_own_share,
    warn_of_filling_up,
    warn_of_whole_workers,
)
from pa_core.data.worker_copies import WorkerCopies
from pa_core.distributed import collectives
from pa_core.errors import ConfigurationError
from pa_core.run_config import LoaderSettings
from pa_core.steps.compatibility import require_even_batches
from pa_core.types import SizedIterable
from pa_core.user_warnings import warn_user
from pa_data import (
    KeyedDataLoader,
    is_in_memory,
    move_to_device,
    start_method,
)
from pa_data.orders import Order, Shuffled

Purpose = Literal["train", "eval"]
"""The purpose of a loader."""

_FORK_BADLY = "daft", "polars"
_MAX_DEFAULT_WORKERS = 16
"""The largest default: each worker takes memory and start-up time."""


def default_num_workers(dataset: Dataset[Any], local_processes: int) -> int:
    """Return the default number of worker processes of a loader.

    The cores that this process may use (its affinity, not the size of the machine) are shared between the processes
    that train on this machine. Data in memory gets no worker, because sending it from another process costs more than
    indexing it. An iterable dataset gets at most one worker, because each of several workers would yield all of its
    samples, unless the dataset was written for several workers. A stream with a ``state_dict`` gets no worker, because
    a worker would not share its position. Nor does a dataset that uses a library whose threads do not survive a fork,
    for example polars. If processes are not forked (on macOS and Windows, and from Python 3.14 on), the default is 0,
    because a worker would need a script with a main guard, and a dataset that can be pickled.

    Args:
        dataset: The dataset to load.
        local_processes: The number of training processes on this machine, at least 1.

    Returns:
        A number from 0 to 16.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> default_num_workers(TensorDataset(torch.zeros(10, 3)), local_processes=1)
        0
    """
    if start_method() != "fork" or is_in_memory(dataset) or is_stream_with_state(dataset):
        return 0
    if library_that_forks_badly(dataset) is not None:
        return 0
    most = 1 if isinstance(dataset, IterableDataset) else _MAX_DEFAULT_WORKERS
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(most, cores // local_processes)


def library_that_forks_badly(dataset: object) -> str | None:
    """Return a library that a dataset uses and that waits forever in forked processes, or None.

    Args:
        dataset: The dataset.
    """
    loaded = [name for name in _FORK_BADLY if name in sys.modules]
    if not loaded:
        return None
    from pa_core.data.code_search import library_of  # of no use without such a library

    return library_of(dataset, loaded)


class Loaders:
    """Creates, splits and counts the loaders of a trainer, and keeps their arguments.

    Args:
        accelerator: The accelerator of the trainer.
        fixed_batches: Whether batches are the same on any number of processes, as in reproducible runs.
    """

    def __init__(self, accelerator: _accelerate.AcceleratorLike, *, fixed_batches: bool = False) -> None:
        self._accelerator = accelerator
        self._fixed_batches = fixed_batches
        self._kwargs: dict[Purpose, dict[str, Any]] = {"train": {}, "eval": {}}
        self._order: Order | None = None
        self.samples_per_update: int | None = None
        self._warned_in: set[str] = set()
        self._copies: WorkerCopies = WorkerCopies()

    def start_run(self) -> None:
        """Reset the warnings, so that each run warns once."""
        self._warned_in.clear()

    def default_kwargs(self, dataset: Dataset[Any], batch_size: int) -> dict[str, Any]:
        """Return the default arguments of a loader of a dataset, for any purpose.

        Args:
            dataset: The samples.
            batch_size: The number of samples in a batch of one process.
        """
        local_processes = int(os.environ.get("LOCAL_WORLD_SIZE", collectives.num_processes()))
        return {
            "batch_size": batch_size,
            "pin_memory": _accelerate.device_of(self._accelerator).type == "cuda",
            "num_workers": default_num_workers(dataset, local_processes),
        }

    def get_or_create(
        self,
        data: DataArgument,
        create: Callable[[int, dict[str, Any] | None], SizedIterable[Any]],
        batch_size: int,
        samples_per_update: int | None = None,
    ) -> SizedIterable[Any] | None:
        """Return the loader of a run, passed or created; None for no evaluation.

        Args:
            data: The data argument of the run.
            create: A function that is called with the batch size and the arguments for the loader, if a dataset was
                passed.
            batch_size: The number of samples in a batch of one process.
            samples_per_update: The number of samples of all processes in an update; None if it follows from the batch
                size and accumulation.

        Raises:
            ConfigurationError: The loader cannot be iterated over often enough, or does not follow the order of the
                run.
            EmptyDatasetError: The loader has no batch.
        """
        self._kwargs[data.purpose] = {}
        if data.purpose == "train":
            self._order, self.samples_per_update = data.order, samples_per_update
        if data.data is None and data.purpose == "eval":
            return None
        with data.named_in_errors():
            loader = create(batch_size, data.kwargs) if data.loader is None else data.loader
        check_loader(loader, data.origin, is_repeated=data.purpose == "eval")
        own = innermost(loader)
        if data.order is not None and not (is_keyed(own) and own.given_order is data.order):
            raise without_effect_on_loader(data.order, f"{describe_loader(own)} from {data.origin}")
        if data.purpose == "train" and is_keyed(own) and own.samples_per_update is not None:
            if samples_per_update not in (None, own.samples_per_update):
                raise ConfigurationError(
                    f"There are two sizes of updates: samples_per_update={samples_per_update}, and "
                    f"{own.samples_per_update} of the loader. Leave one of them out."
                )
            self.samples_per_update = own.samples_per_update
        if data.purpose == "train" and data.order is None and data.dataset is not None:
            holder = None if data.loader is None or is_keyed(data.loader) else "a DataLoader"
            if (lost := describe_lost_order(data.dataset, holder)) is not None:
                warn_user(lost)
        return loader

    def create(
        self,
        dataset: Dataset[Any],
        purpose: Purpose,
        defaults: Mapping[str, Any],
        requested: Mapping[str, Any] | None,
        *,
        collate_fn: Callable[[list[Any]], Any] | None,
        seed: int,
        allows_empty_shares: bool = False,
    ) -> SizedIterable[Any]:
        """Create a loader of a dataset.

        Args:
            dataset: The samples.
            purpose: The purpose of the loader.
            defaults: The default arguments.
            requested: The requested arguments, which override the defaults.
            collate_fn: The function that makes a batch of a list of samples, unless it is among the arguments.
            seed: The seed of the order of the samples.
            allows_empty_shares: Whether a process may have no sample in an evaluation of fewer samples than processes,
                as in the last step of a training epoch; otherwise that is an error.

        Returns:
            A ``KeyedDataLoader``; a plain ``DataLoader`` with a custom sampler, or for an ``IterableDataset`` unless
            batches are fixed and it has a length.
        """
        if purpose == "train" and order_that_makes_batches(self._order, dataset, requested or {}) is not None:
            defaults = {name: value for name, value in defaults.items() if name != "batch_size"}
        is_stream = isinstance(dataset, IterableDataset)
        is_cut = is_stream and self._fixed_batches and length_of(dataset) is not None
        if is_cut:
            _require_whole(dataset, self._accelerator.num_processes)
            defaults = {**defaults, "shuffle": False}
        kwargs: dict[str, Any] = {**defaults, **(requested or {})}
        self._kwargs[purpose] = kwargs
        kwargs = {"collate_fn": collate_fn, **kwargs}
        if "num_workers" not in (requested or {}) and _forks_badly(kwargs["collate_fn"], kwargs):
            kwargs["num_workers"] = self._kwargs[purpose]["num_workers"] = 0
        _warn_of_forks(dataset, kwargs)
        own_share = kwargs.pop(OWN_SHARE, None)
        if (is_stream and not is_cut) or not kwargs.keys().isdisjoint(("sampler", "batch_sampler")):
            return state_own_share(plain_dataloader(dataset, kwargs), own_share)
        if own_share:
            raise divided_by_trainer(dataset)
        kwargs = {"persistent_workers": kwargs["num_workers"] > 0 and not is_stream, **kwargs}
        if purpose == "train":
            kwargs["order"] = self._order
            if self.samples_per_update is not None:
                kwargs = {"samples_per_update": self.samples_per_update, **kwargs}
        elif kwargs.get("shuffle"):
            kwargs["order"] = Shuffled(kwargs.pop("algorithm", None))
        if self._fixed_batches:
            _require_reproducible(purpose, kwargs)
            kwargs["fixed_batches"], allows_empty_shares = True, False
        has_too_few = allows_empty_shares and (length_of(dataset) or 0) < self._accelerator.num_processes
        keyed: KeyedDataLoader[Any] = KeyedDataLoader(
            dataset,
            split="train" if has_too_few else purpose,
            seed=seed,
            rank=self._accelerator.process_index,
            num_processes=self._accelerator.num_processes,
            device=_accelerate.device_of(self._accelerator),
            **kwargs,
        )
        return state_own_share(keyed, own_share)

    def steps_per_update(self, loader: SizedIterable[Any], batch_size: int, requested: int) -> int:
        """Return the number of batches of one process in an update.

        Args:
            loader: The training loader.
            batch_size: The number of samples in a batch of one process, if the loader does not show it.
            requested: The requested accumulation; 1 by default.

        Raises:
            ConfigurationError: ``samples_per_update`` does not fit.
        """
        samples, keyed = self.samples_per_update, innermost(loader)
        if samples is None:
            return requested
        if is_keyed(keyed) and keyed.samples_per_update is not None:
            size, steps, rest = batch_size, keyed.split.steps_per_update, 0
        else:
            size = batch_size_of(keyed, {}, batch_size)
            steps, rest = divmod(samples, size * self._accelerator.num_processes)
        if rest == 0 and requested in (1, steps):
            return steps
        processes = self._accelerator.num_processes
        raise ConfigurationError(
            "The sizes of batches and updates do not fit together.",
            given=f"samples_per_update={samples}, batches of {size} on {processes} process{'es' * (processes > 1)}, "
            f"and gradient_accumulation_steps={requested}",
            do=f"A DataLoader makes whole batches: choose a multiple of {size * processes}, or pass a dataset."
            if rest
            else f"Leave gradient_accumulation_steps out: {steps} of these batches make an update.",
        )

    def set_batch_sizes(self, sizes: Sequence[int], purpose: Purpose, loaders: Iterable[object]) -> None:
        """Set the sizes of batches by the processes.

        Args:
            sizes: The number of samples of each process.
            purpose: The purpose of the loaders.
            loaders: The loaders; only keyed loaders change.
        """
        for loader in filter(is_keyed, map(innermost, loaders)):
            loader.set_batch_sizes(sizes)
            self._kwargs[purpose]["batch_size"] = loader.batch_size

    def settings(self, purpose: Purpose, loader: object, per_device_batch_size: int) -> LoaderSettings:
        """Return the settings of a loader for the run config.

        Args:
            purpose: The purpose of the loader.
            loader: The loader, or None.
            per_device_batch_size: The number of samples in a batch of one process, if the loader does not show it.
        """
        kwargs, keyed = self._kwargs[purpose], innermost(loader)
        if purpose == "train" and is_keyed(keyed) and not keyed.given_order.is_plain:
            kwargs = {**kwargs, "order": keyed.given_order.fingerprint}
        if is_keyed(keyed) and keyed.given_order.makes_batches:
            return LoaderSettings(keyed.split.batch_size, kwargs)
        return LoaderSettings(batch_size_of(loader, kwargs, per_device_batch_size), kwargs)

    def split(self, loader: SizedIterable[Any], *, compares: bool = True) -> SizedIterable[Any]:
        """Return the share of this process; accelerate splits loaders that are neither keyed nor split.

        Args:
            loader: The loader. Objects other than a ``DataLoader`` are assumed to be the share of their process.
            compares: Whether the processes compare their data; if so, all of them must call this.

        Raises:
            ConfigurationError: A sampler or a dataset has the share of another process, a sampler has unequal shares,
                or a sampler or a dataset seems to have a share although ``own_share`` is not set.
            RanksDifferError: The processes have different samples.
        """
        if is_slice(loader):
            return DataLoaderSlice(self.split(loader.wrapped, compares=compares), loader.slice_size)
        rank, num_processes = self._accelerator.process_index, self._accelerator.num_processes
        if not is_dataloader(loader):
            return loader
        says = states_own_share(loader)
        if is_keyed(loader):
            if num_processes > 1 and compares and says is None:
                _require_same_data(loader)
            return loader
        warn_of_whole_workers(loader)
        _warn_of_early_draws(loader)
        share = share_of(loader)
        if share is not None:
            check_share(loader, share, rank=rank, num_processes=num_processes)
            return loader
        if num_processes == 1 or says:
            return loader
        if says is None:
            _require_undivided(loader, compares=compares)
        require_even_batches(self._accelerator)
        warn_of_filling_up(loader)
        of_process = _accelerate.split_loader(self._accelerator, loader)
        check_loader(of_process, "accelerate, which split the loader over the processes")
        return of_process

    def split_for_training(self, loader: SizedIterable[Any]) -> SizedIterable[Any]:
        """Return the share of this process in a training loader; every process must call this.

        Args:
            loader: The loader of all processes.

        Raises:
            ConfigurationError: The loader cannot be split, or processes have different numbers of batches.
        """
        share = self.split(loader)
        if not is_keyed(innermost(share)):
            require_same_lengths(collectives.gather_objects(count_steps(share)))
        return share

    def count_batches(self, loader: SizedIterable[Any], phase: Literal["training", "evaluation"]) -> BatchCount | None:
        """Return a counter of the batches of an epoch; None for a keyed loader, whose length is always right.

        Args:
            loader: The loader of the epoch.
            phase: The purpose of the epoch.
        """
        own = innermost(loader)
        if is_keyed(own):
            return None
        self._copies.compare(own)
        is_per_process = self._accelerator.num_processes > 1 and not _accelerate.is_split(own)
        return BatchCount(loader, phase, is_per_process=is_per_process, num_processes=self._accelerator.num_processes)

    def check_count(self, count: BatchCount, missing: float, *, is_empty: bool) -> None:
        """Compare the batches of an epoch with the length of its loader; warn once in a run if they differ.

        Args:
            count: The counter of this process.
            missing: The number of batches that are missing on all processes.
            is_empty: Whether no process had a sample.

        Raises:
            EmptyDatasetError: There was no batch.
            ConfigurationError: A process had fewer training batches than its length, or a sample ended the epoch.
        """
        if missing > 0 and count.is_certain:
            raise count.ended_by_sample()
        if is_empty and count.has_ended and count.given == 0:
            raise count.nothing_counted()
        if missing > 0 and count.is_per_process and count.phase == "training":
            raise count.too_few_on_a_process()
        speaks = count.is_per_process or self._accelerator.is_main_process
        if speaks and count.phase not in self._warned_in and count.warn_of_difference():
            self._warned_in.add(count.phase)


def _forks_badly(part: object, kwargs: Mapping[str, Any]) -> str | None:
    """Return a library for which a part waits forever in the workers of a loader, or None."""
    if kwargs["num_workers"] == 0 or start_method(kwargs.get("multiprocessing_context")) != "fork":
        return None
    return library_that_forks_badly(part)


def _warn_of_forks(dataset: object, kwargs: Mapping[str, Any]) -> None:
    """Warn about workers that were requested and would wait forever."""
    for name, part in ((type(dataset).__name__, dataset), ("collate_fn", kwargs.get("collate_fn"))):
        if (library := _forks_badly(part, kwargs)) is not None:
            warn_user(
                f"{name} uses {library}, whose threads do not exist in a forked worker: the run may "
                'wait forever. Pass num_workers=0, or multiprocessing_context="forkserver".'
            )
            return


def _warn_of_early_draws(loader: DataLoader[Any]) -> None:
    if isinstance(loader.dataset, IterableDataset):
        from pa_core.data.early_draws import warn_of_early_draws  # of use for streams alone

        warn_of_early_draws(loader.dataset)


def _require_undivided(loader: DataLoader[Any], *, compares: bool) -> None:
    """Raise an error for a loader that seems to yield the share of its process, without ``own_share``."""
    from pa_core.data.own_shares import reject_own_share, require_same_sources  # of no use on one process

    reject_own_share(loader)
    if compares:
        require_same_sources(loader)
        _require_same_data(loader)


def _require_same_data(loader: DataLoader[Any]) -> None:
    from pa_core.data.same_samples import require_same_samples  # of no use on one process

    require_same_samples(loader)


def _require_whole(stream: Dataset[Any], num_processes: int) -> None:
    """Raise an error for a stream that yields the share of its process."""
    loader = plain_dataloader(stream, {})
    if num_processes > 1 and states_own_share(loader) is None:
        _require_undivided(loader, compares=False)
    share = share_of(loader)
    if share is not None and share.of > 1:
        raise ConfigurationError(
            "A reproducible run divides a stream by position, but this stream divides itself.",
            given=f"{type(stream).__name__} with num_replicas={share.of} and rank={share.number}",
            do="Let it yield all samples on each process.",
        )


def _require_reproducible(purpose: Purpose, kwargs: Mapping[str, Any]) -> None:
    """Raise an error for arguments of a loader with which a run is not reproducible."""
    if not kwargs.get("keyed_augmentation", True):
        raise ConfigurationError(
            "The random numbers of a reproducible run follow from the sample: leave out keyed_augmentation=False."
        )
    if purpose == "eval" and kwargs.get("drop_last"):
        raise ConfigurationError("A reproducible run evaluates every sample: leave out drop_last=True.")


def batches_on_device(
    loader: SizedIterable[Any], device: torch.device, count: BatchCount | None = None
) -> Iterable[Any]:
    """Return an iterable over the batches of an epoch on the device.

    Args:
        loader: The loader.
        device: The device of the run.
        count: The counter of a custom loader, or None.
    """
    keyed = innermost(loader)
    if is_keyed(keyed) and keyed.device is not None:
        return loader
    moved = (move_to_device(batch, device) for batch in loader)
    return moved if count is None else count.over(moved)
