"""The loader whose batches are a function of seed, epoch, position and rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache, partial
from typing import Any, ClassVar, Literal, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset
from typing_extensions import Unpack, override

from pa_data._fetching import EpochProgress, SampleFetcher, move_to_device, prefetched
from pa_data._requested_loader import LoadingOptions, RequestedDataLoader
from pa_data._split import BatchSplit, EpochBatches, EpochPlan, EvalSplit, Split, UpdateSplit
from pa_data._streams import SizedStream
from pa_data.errors import DataError, EmptyDatasetError
from pa_data.orders import EpochOrder, Order, Sequential, Shuffled
from pa_data.orders._checks import check_count
from pa_data.orders._given import order_of_dataset
from pa_data.rng import extend_key, mix, preserve_rng_state

__all__ = ["KeyedDataLoader", "count_samples"]


def count_samples(dataset: Dataset[Any]) -> int:
    """Return the length of a dataset, with clear errors for datasets without a length or without samples.

    Use it instead of ``len(dataset)`` at the start of a script or in your own loader. Its errors name the class of the
    dataset and the usual causes.

    Args:
        dataset: Any dataset. No sample is read.

    Returns:
        The number of samples, at least 1.

    Raises:
        DataError: The dataset has no length. Most ``IterableDataset`` classes have none.
        EmptyDatasetError: The dataset has no samples.

    Example:
        >>> from pa_data import count_samples
        >>> count_samples([3, 1, 4])
        3
    """
    kind = type(dataset).__name__
    try:
        num_samples = len(cast("Sized", dataset))
    except (TypeError, NotImplementedError) as error:
        raise _without_positions(f"a dataset of type {kind}: {error}") from error
    if num_samples == 0:
        raise EmptyDatasetError(
            f"The dataset is empty. Got a dataset of type {kind} with 0 samples, expected at least one sample. Look "
            "at how the dataset was made; a wrong path and a filter that keeps nothing are common."
        )
    return num_samples


def _without_positions(given: str) -> DataError:
    """Return the error for a dataset without a length."""
    return DataError(
        "A keyed order needs a dataset with a length, whose samples are indexed by integers or come in one order. "
        f"Got {given}. Give the dataset __len__ and __getitem__, or load it with a plain torch.utils.data.DataLoader."
    )


def _check_stream(order: Order, persistent_workers: bool) -> None:
    """Raise an error for options that a stream does not support."""
    if not order.ascends:
        raise DataError(
            f"A stream is read in its own order. Got an IterableDataset, and the order {type(order).__name__}. Leave "
            "the order and shuffle out, or give the dataset __getitem__ and make it no IterableDataset."
        )
    if persistent_workers:
        raise DataError(
            "Workers begin a stream again in each epoch, which it may be told: leave out persistent_workers=True."
        )


def _check_batches_of_order(
    order: Order, batch_size: int | None, drop_last: bool, split: str, samples_per_update: int | None
) -> None:
    """Raise an error for options that have no effect, or no meaning, if the order makes the batches."""
    kind = type(order).__name__
    if samples_per_update is not None:
        raise DataError(f"The batches of an order have any size: leave out {samples_per_update=} with order={kind}.")
    if batch_size not in (None, 1):
        raise DataError(
            f"batch_size has no effect with an order that makes the batches. Got batch_size={batch_size}, and "
            f"order={kind}. Leave batch_size out, and give {kind} the size of its batches."
        )
    if drop_last:
        raise DataError(f"An order of batches drops none: leave out drop_last=True with order={kind}.")
    if split != "train":
        raise DataError(
            f'An evaluation goes in the order of the dataset, got split="{split}", and order={kind}. Leave the order '
            "out, and pass a batch_size."
        )


def _check_fixed_batches(
    order: Order, split: str, samples_per_update: int | None, keyed_augmentation: bool, drop_last: bool
) -> None:
    """Raise an error for options with which batches cannot be the same on any number of processes."""
    if order.makes_batches:
        kind = type(order).__name__
        raise DataError(f"The batches of an order have any size: leave out fixed_batches=True with {kind}.")
    if not keyed_augmentation:
        raise DataError("Fixed batches need keyed draws: leave out keyed_augmentation=False.")
    if split == "train" and samples_per_update is None:
        raise DataError("Fixed batches are parts of an update: pass samples_per_update.")
    if split == "eval" and drop_last:
        raise DataError("An evaluation with fixed batches drops none: leave out drop_last=True.")


def _check_options(rank: int, num_processes: int, options: LoadingOptions, in_order: bool) -> None:
    """Raise an error for options that contradict each other, or the fixed order of batches."""
    if unknown := options.keys() - LoadingOptions.__annotations__.keys():
        raise TypeError(" ".join(map(_refusal_of_option, sorted(unknown))))
    if not 0 <= rank < num_processes:
        raise DataError(f"A rank is from 0 to num_processes - 1, got {rank=}, {num_processes=}.")
    timeout = options.get("timeout", 0)
    if timeout > 0 and options.get("num_workers", 0) == 0:
        raise DataError(f"A timeout is for workers: leave out {timeout=}, or pass num_workers.")
    if not in_order:
        raise DataError("A keyed loader yields its batches in order: leave out in_order=False.")


def _refusal_of_option(name: str) -> str:
    if name in ("sampler", "batch_sampler"):
        return f"A keyed loader takes no {name}: its order says which samples come."
    known = [*cast("Any", KeyedDataLoader).__init__.__annotations__, *LoadingOptions.__annotations__]
    near = get_close_matches(name, [option for option in known if option not in ("dataset", "options", "return")], n=1)
    return f"KeyedDataLoader has no option {name}.{f' The nearest name is {near[0]}.' if near else ''}"


class ChosenBatches(Order, EpochOrder):
    """Selects some batches of a dataset: an order, and each epoch of it.

    Args:
        numbers: The numbers of the batches.
        size: The number of samples of each batch, except for the last batch of the dataset.
        num_samples: The number of samples of the dataset.

    Raises:
        DataError: A number is out of range, or a shorter batch does not come last.

    Example:
        >>> ChosenBatches([0, 2], size=4, num_samples=10).indices(2, 6).tolist()
        [2, 3, 8, 9]
    """

    name: ClassVar[str] = "chosen-batches-v1"
    algorithm: ClassVar[str] = name
    ascends: ClassVar[bool] = True

    def __init__(self, numbers: Sequence[int], size: int, num_samples: int) -> None:
        last = -(-num_samples // size) - 1
        is_short = num_samples % size > 0
        if not numbers or min(numbers) < 0 or max(numbers) > last or (is_short and last in numbers[:-1]):
            raise DataError(
                f"Batches are chosen by their numbers, 0 to {last}"
                f"{f', and batch {last} is shorter and comes last' * is_short}. Got batches={[*numbers]!r:.60}."
            )
        of_last = min(size, num_samples - numbers[-1] * size)
        EpochOrder.__init__(self, (len(numbers) - 1) * size + of_last, seed=0, epoch=0)
        self.numbers: Tensor = torch.tensor(numbers)
        self.size: int = size

    @override
    def epoch_order(self, num_samples: int, *, seed: int, epoch: int) -> EpochOrder:
        return self

    @override
    def compute_indices(self, start: int, stop: int) -> Tensor:
        positions = torch.arange(start, stop)
        return self.numbers[positions // self.size] * self.size + positions % self.size


_SampleT_co = TypeVar("_SampleT_co", covariant=True)
_MAY_BE_EXCEEDED = 2  # see `UpdateSplit`
_WORKER_STREAMS = -1  # extends the key of an epoch where no sample index does


class KeyedDataLoader(RequestedDataLoader[_SampleT_co]):
    """A ``torch.utils.data.DataLoader`` that can start at any sample of any epoch and still yields the same batches.

    Use it instead of a ``DataLoader`` with a ``DistributedSampler``, for runs that may be interrupted. The order of an
    epoch depends only on the seed and the epoch, so a resumed run continues at the next sample, on the same or on a
    different number of processes. Seeking takes no time, because samples before the position are not loaded.
    ``state_dict`` returns the position, and ``load_state_dict`` restores it.

    Random augmentation is reproducible, because the global random number generators of Python, NumPy and torch are
    seeded from the seed, the epoch and the sample index before each sample is read. So the augmentation depends neither
    on the number of workers nor on the position at which the run began. After each batch, the generators of the main
    process are restored, so the loader does not affect the random numbers of training. Custom generators of a dataset
    are not seeded.

    Datasets of tensors in memory, and datasets with ``fetch_batch``, are read a whole batch at a time, without seeding
    and several times as fast. The batches equal the results of torch's default collation.

    Choose an epoch with ``set_epoch`` or ``start_epoch``; the first is epoch 0. Iterating again without choosing an
    epoch repeats the epoch from the same position. ``len(loader)`` is the number of batches of this process in a whole
    epoch.

    In training on several processes, the last step of an epoch may have too few samples for all of them. The last
    processes then get no batch in this step, and ``DistributedDataParallel`` would wait forever. Pass
    ``drop_last=True``, or ``split="eval"`` for an evaluation, in which every process has a batch in every step.

    With accelerate, ``Accelerator.prepare`` leaves the loader unchanged, and ``save_state`` saves its position.
    Lightning saves the position and chooses the epochs, too; pass ``use_distributed_sampler=False`` to its trainer.

    Args:
        dataset: A dataset with a length and integer indices, or an ``IterableDataset`` with a length, which each
            process and worker reads from its beginning to find its own samples. The length must not change while the
            loader is in use.
        batch_size: The number of samples of this process in a full step. The default is 1, as in torch. Leave it out,
            or pass None, for an order that makes the batches.
        shuffle: Whether each epoch has a different random order. The default is False, as in torch. With True, training
            uses the ``default_order`` of the dataset if the dataset has it.
        split: How the global batch (the samples of all processes in a step) is divided, and how the last batch is
            treated: ``"train"``, the default, uses an ``UpdateSplit`` or ``BatchSplit``, and ``"eval"`` uses an
            ``EvalSplit``.
        seed: The seed of the run, the same on every process. The default is 0, so that a script without a seed is
            reproducible, too.
        rank: The rank of this process, from 0 to ``num_processes - 1``. The default is 0, for a run of one process.
        num_processes: The number of processes that share each global batch. The default is 1.
        device: The device to move each batch to. By default batches stay on the CPU, as in torch.
        drop_last: Whether to leave out samples that do not fill a global batch or an update. The default is False, so
            that every sample is used.
        samples_per_update: The number of samples of an update (of one ``optimizer.step()``, over all processes and
            accumulated batches), which is the same on any number of processes; see ``UpdateSplit``. ``batch_size`` is
            then the largest number of samples of this process in a step. By default, each step is an update.
        fixed_batches: Whether batches of at most ``batch_size`` samples are the same on any number of processes, for
            bit-for-bit identical results. The default is False, which divides steps more evenly. Training cuts updates
            as ``UpdateSplit`` does; in an evaluation, the processes take the batches in turn.
        collate_fn: The function that combines a list of samples into a batch. The default is torch's own function.
        num_workers: The number of worker processes. The default, 0, loads in this process, as in torch.
        keyed_augmentation: Whether the random number generators are seeded for each sample. The default is True.
            Seeding takes 1 to 7 microseconds per sample, since Python's and NumPy's generators are seeded only if
            samples draw from them. Without workers, it also takes 20 to 50 microseconds per batch. It takes no time for
            datasets that cannot draw random numbers, such as lists, arrays and tables of Hugging Face's ``datasets``
            without a transform. The first samples that draw may be read twice. With False the draws are not
            reproducible, and a dataset with ``__getitems__`` reads all samples of a batch at once.
        whole_batches: Whether batches are read whole, without ``collate_fn``. By default they are if the dataset
            supports it and there is no ``collate_fn``. True raises an error if this is impossible, and False reads
            sample by sample.
        algorithm: The name of a permutation algorithm to reproduce; see ``epoch_order``. By default, the algorithm
            depends on the number of samples.
        order: The order of the epochs, an object from ``pa_data.orders``, instead of ``shuffle``. By default,
            ``shuffle`` determines the order.
        batches: The numbers of the batches to load, in this order, counted from 0. By default all batches are loaded.
            Use it to continue a job that was interrupted, such as predictions. The samples of a dataset with indices
            get the same random numbers as in an epoch of all batches. A last batch that is shorter than the others must
            come last.
        pin_memory: Whether to copy each batch to pinned memory, so that moving it does not block. The default is False,
            as in torch. On CUDA a batch is then moved while the device computes with the previous batch.
        timeout: The number of seconds to wait for a worker. The default, 0, waits forever.
        worker_init_fn: A function that is called in each worker with its number. By default none is called.
        multiprocessing_context: How workers are started: ``"fork"``, ``"spawn"``, ``"forkserver"`` or a context of
            ``multiprocessing``. By default, the start method of this process is used; see ``start_method``.
        generator: A generator that seeds the generators of workers, and nothing else, since the order comes from
            ``seed``. By default the loader has its own.
        prefetch_factor: The number of batches that each worker loads ahead. The default is 2, as in torch. Without
            workers, this option must be left out.
        persistent_workers: Whether to keep the workers for the next epoch. The default is False, as in torch. With
            True, only the newest iterator may be used, and an older iterator raises a ``RuntimeError``.
        pin_memory_device: The kind of device for which torch pins memory. The default is the current accelerator, as in
            torch, where this option is deprecated.
        in_order: Must be True, since the loader guarantees the order.

    Attributes:
        batch_size: The number of samples of this process in a full step, or None for an order that makes the batches.
        drop_last: Whether samples that do not fill a global batch or an update are left out.
        shuffle: Whether the order is anything but the order of the dataset.
        device: The device to which each batch is moved, or None.
        rank: The rank of this process.
        num_processes: The number of processes that share each global batch.
        given_order: The order of all epochs, an ``Order``.
        keyed_augmentation: Whether the random number generators are seeded for each sample.
        whole_batches: Whether batches are read whole.
        samples_per_update: The number of samples of an update, or None.
        fixed_batches: Whether batches are the same on any number of processes.

    Raises:
        TypeError: The order is not an ``Order``, or there is an unknown option.
        DataError: An option is out of its range, the dataset has no length, or options contradict each other.
        EmptyDatasetError: There are no samples, ``drop_last`` leaves none, or there are fewer samples to evaluate on
            than processes.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from pa_data import KeyedDataLoader
        >>> loader = KeyedDataLoader(TensorDataset(torch.arange(10)), batch_size=4, shuffle=True, seed=3)
        >>> whole_epoch = [batch[0].tolist() for batch in loader]
        >>> loader.start_epoch(0, position=4)
        >>> [batch[0].tolist() for batch in loader] == whole_epoch[1:]
        True
        >>> for rank in range(2):  # in a run, each process makes its own loader with its own rank
        ...     loader = KeyedDataLoader(range(10), batch_size=2, rank=rank, num_processes=2, drop_last=True)
        ...     print([batch.tolist() for batch in loader])
        [[0, 1], [4, 5]]
        [[2, 3], [6, 7]]
    """

    # accelerate divides no loader that has the first of these, and saves the state of one that has the second.
    _is_accelerate_prepared = True
    use_stateful_dataloader = True

    def __init__(
        self,
        dataset: Dataset[_SampleT_co],
        batch_size: int | None = 1,
        shuffle: bool = False,
        *,
        split: Literal["train", "eval"] = "train",
        seed: int = 0,
        rank: int = 0,
        num_processes: int = 1,
        device: torch.device | str | int | None = None,
        drop_last: bool = False,
        keyed_augmentation: bool = True,
        whole_batches: bool | None = None,
        algorithm: str | None = None,
        order: Order | None = None,
        in_order: bool = True,
        samples_per_update: int | None = None,
        fixed_batches: bool = False,
        batches: Sequence[int] | None = None,
        **options: Unpack[LoadingOptions],
    ) -> None:
        _check_options(rank, num_processes, options, in_order)
        order = order_of_dataset(dataset if shuffle and split == "train" and algorithm is None else None, order)
        if order is not None and algorithm is not None:
            raise _two_orders(order, algorithm)
        if batches is not None:
            if shuffle or order is not None or algorithm is not None or drop_last or num_processes > 1:
                raise DataError(
                    "Chosen batches have their order: leave out shuffle, order, algorithm and drop_last. On several "
                    "processes, leave out num_processes and choose other batches on each."
                )
            check_count("batch_size", batch_size)
            order = ChosenBatches(batches, cast("int", batch_size), count_samples(dataset))
        self.given_order: Order = _plain_order(shuffle, algorithm) if order is None else order
        reads_stream = isinstance(dataset, IterableDataset)
        if reads_stream:
            _check_stream(self.given_order, options.get("persistent_workers", False))
        if fixed_batches:
            _check_fixed_batches(self.given_order, split, samples_per_update, keyed_augmentation, drop_last)
        if self.given_order.makes_batches:
            _check_batches_of_order(self.given_order, batch_size, drop_last, split, samples_per_update)
            batch_size = None
            self._split_epoch: partial[Split] = partial(_split_batches, num_processes=num_processes)
        else:
            check_count("batch_size", batch_size)
            size = cast("int", batch_size)
            self._split_epoch = partial(
                _split_epoch,
                split,
                batch_size=size,
                num_processes=num_processes,
                drop_last=drop_last,
                samples_per_update=samples_per_update,
                fixed_batches=fixed_batches,
            )
        self.samples_per_update: int | None = samples_per_update
        self.fixed_batches: bool = fixed_batches
        self._evaluates = split == "eval"
        self._num_samples = count_samples(dataset)
        self._seed, self._epoch = seed, 0
        self.rank: int = rank
        self.num_processes: int = num_processes
        self.shuffle: bool = shuffle if order is None else not isinstance(order, Sequential)
        self.device: torch.device | None = None if device is None else torch.device(device)
        self._batches = EpochBatches(self._plan_of_whole_epoch(0), reads_stream=reads_stream)
        self._iterated, self._progress = self._batches.plan, EpochProgress()
        self._check_epoch(self.split)
        super().__init__(
            SizedStream(dataset, keyed=keyed_augmentation) if isinstance(dataset, IterableDataset) else dataset,
            self._batches,
            keyed_augmentation=keyed_augmentation,
            whole_batches=whole_batches,
            **options,
        )
        # With a batch sampler torch forgets the first two, and refuses to have any of them set.
        vars(self).update(batch_size=batch_size, drop_last=drop_last, dataset=dataset)
        self._fetcher_for_others = self._fetcher
        if isinstance(self._fetcher, SampleFetcher) and isinstance(dataset, IterableDataset):
            # It reads behind this process's own, which would have to go back.
            of_others = SizedStream(dataset, keyed=keyed_augmentation)
            self._fetcher_for_others = replace(self._fetcher, dataset=of_others)

    @property
    def seed(self) -> int:
        """The seed of the run, an integer; 0 unless you pass another.

        Setting it affects the next iterator, which begins at the chosen epoch and position in the order of the new
        seed. An iterator that is in use keeps its order. Set the same seed on every process.
        """
        return self._seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._change(_seed=seed)

    @property
    def algorithm(self) -> str | None:
        """The name of the permutation algorithm that was chosen, for example ``"randperm-v1"``, or None.

        With None, the default, the algorithm depends on the number of samples. The value is also None for an order
        other than ``Shuffled``. The name of the algorithm in use is ``loader.order.algorithm``. After you set a name,
        the next iterator reproduces the order of an earlier run, from the chosen epoch and position on. An unknown
        name, or a name for a loader with its own ``order``, raises a ``DataError``.
        """
        return self.given_order.algorithm if isinstance(self.given_order, Shuffled) else None

    @algorithm.setter
    def algorithm(self, algorithm: str | None) -> None:
        before = self.given_order
        if not before.is_plain:
            if algorithm is not None:
                raise _two_orders(before, algorithm)
            return
        self._change(given_order=_plain_order(self.shuffle, algorithm))

    def _change(self, **attributes: Any) -> None:
        """Change attributes, and choose the same epoch and position with them; an error changes nothing."""
        before = {name: vars(self)[name] for name in attributes}
        vars(self).update(attributes)  # torch refuses to have the batch size set
        try:
            self.start_epoch(self._epoch, self.position)
        except Exception:
            vars(self).update(before)
            raise

    @property
    def epoch(self) -> int:
        """The chosen epoch, an integer from 0, in which the next iterator begins.

        It is 0 at first. ``set_epoch``, ``start_epoch`` and ``load_state_dict`` change it; iterating does not. A
        resumed script starts its loop here: ``for epoch in range(loader.epoch, num_epochs)``.
        """
        return self._epoch

    @property
    def position(self) -> int:
        """The number of samples of the chosen epoch, over all processes, that the next iterator skips.

        It is 0 at first. ``start_epoch`` and ``load_state_dict`` set it, ``set_epoch`` resets it to 0 for a different
        epoch, and iterating does not change it. For the progress of the newest iterator, read
        ``state_dict()["samples"]``. In an evaluation it is always 0.
        """
        return self.split.start

    @property
    def order(self) -> EpochOrder:
        """The order of the chosen epoch, an ``EpochOrder``.

        Use it to look up which samples come: ``loader.order.indices(0, 8)`` returns the dataset indices of the first 8
        samples of the epoch, over all processes. It changes with ``set_epoch``, ``start_epoch``, ``load_state_dict``,
        ``seed`` and ``algorithm``. The ``Order`` of all epochs is ``given_order``.
        """
        return self._batches.plan.order

    @property
    def split(self) -> Split:
        """The split of the chosen epoch, a ``Split``; its step 0 is the first step after the chosen position.

        Use it to find out which positions in the epoch a process takes in a step (``loader.split.piece(step, rank)``),
        or how much a step counts in its update. It is an ``UpdateSplit`` or, for an order that makes the batches, a
        ``BatchSplit``; with ``split="eval"`` it is an ``EvalSplit``, or a ``BatchSplit`` with fixed batches. It changes
        when an epoch, a position or batch sizes are chosen.
        """
        return self._batches.plan.split

    def start_epoch(self, epoch: int, position: int = 0) -> None:
        """Choose the epoch and the position of the next iterator. An iterator in use keeps its own.

        You call it to resume with a position that you have saved yourself, or to repeat an epoch. Unlike ``set_epoch``,
        it always starts at the given position. To resume from ``state_dict()``, call ``load_state_dict``. Call it with
        the same arguments on every process.

        Args:
            epoch: The epoch number, from 0. The order and the random augmentation depend on it.
            position: The number of samples of this epoch, over all processes, that have already been trained on. The
                default is 0, the beginning of the epoch.

        Raises:
            DataError: The position is outside of the epoch, is not 0 in an evaluation, or is in the middle of an update
                with ``fixed_batches`` or of a batch that the order makes.

        Example:
            >>> from pa_data import KeyedDataLoader
            >>> loader = KeyedDataLoader(range(10), batch_size=4)
            >>> loader.start_epoch(1, position=4)
            >>> [batch.tolist() for batch in loader]
            [[4, 5, 6, 7], [8, 9]]
        """
        if position != 0 and self._evaluates:
            raise DataError(f"An evaluation always begins at its first sample: leave out {position=}.")
        plan = whole_epoch = self._plan_of_whole_epoch(epoch)
        if position != 0:
            plan = replace(plan, split=self._split_epoch(plan.order, start=position))
        self._epoch = epoch
        self._batches.plan, self._batches.whole_epoch = plan, whole_epoch
        self._iterated, self._progress = plan, EpochProgress()
        self._batches.sampler.epoch = None

    def set_batch_sizes(self, sizes: Sequence[int]) -> None:
        """Choose the largest number of samples of each process in a step, from the next iterator on.

        You call it, on every process, if a batch does not fit into memory, or if devices differ. For training,
        ``samples_per_update`` must be set, so that updates stay the same; steps are divided in proportion to the sizes.
        In an evaluation, each process takes batches of the smallest of these sizes. The chosen epoch and position do
        not change.

        Args:
            sizes: A number of samples for each process, at least 1, by rank; the same list on all processes.

        Raises:
            DataError: The batches depend on the order or on ``fixed_batches``, updates depend on the batch size, or
                there is not a size of at least 1 for each process. The sizes are not changed then.

        Example:
            >>> from pa_data import KeyedDataLoader
            >>> loader = KeyedDataLoader(range(12), batch_size=6, samples_per_update=6)
            >>> loader.set_batch_sizes([3])
            >>> [len(batch) for batch in loader]
            [3, 3, 3, 3]
        """
        if (
            self.fixed_batches
            or self.given_order.makes_batches
            or (not self._evaluates and self.samples_per_update is None)
        ):
            raise DataError(
                "The batches of this loader have the sizes that it was made with. Pass samples_per_update, no "
                "fixed_batches, and an order that makes no batches."
            )
        if len(sizes) != self.num_processes:
            raise DataError(f"Each process needs a batch size: {self.num_processes} processes, and sizes={[*sizes]}.")
        for rank, of_rank in enumerate(sizes):
            check_count(f"sizes[{rank}]", of_rank)
        size = min(sizes) if self._evaluates else max(sizes)
        # Dealt evenly, a step of three samples is the one piece that may be larger than a batch.
        is_even = self._evaluates or (len(set(sizes)) == 1 and size != _MAY_BE_EXCEEDED)
        of_each = () if is_even else tuple(sizes)
        split_epoch = partial(self._split_epoch, batch_size=size, batch_sizes=of_each)
        self._change(_split_epoch=split_epoch, batch_size=size)

    def set_epoch(self, epoch: int) -> None:
        """Choose an epoch for the next iterator, from its first sample on; the current epoch keeps its position.

        You call it at the start of each epoch, like ``DistributedSampler.set_epoch``. In a resumed run, the loop may
        begin with the interrupted epoch, because this method then keeps the position that ``load_state_dict`` has
        restored. To go back to the beginning of the current epoch, call ``start_epoch``. When the iteration begins, the
        loader also passes the epoch number to the ``set_epoch`` methods of the dataset and of ``collate_fn``, if there
        are any, except in an evaluation.

        Args:
            epoch: The epoch number, from 0.

        Raises:
            DataError: The order cannot make this epoch, for example if a ``Curriculum`` chooses samples out of range.

        Example:
            >>> from pa_data import KeyedDataLoader
            >>> loader = KeyedDataLoader(range(6), batch_size=4)
            >>> loader.load_state_dict({**loader.state_dict(), "samples": 4})
            >>> for epoch in range(2):
            ...     loader.set_epoch(epoch)
            ...     print([batch.tolist() for batch in loader])
            [[4, 5]]
            [[0, 1, 2, 3], [4, 5]]
        """
        if epoch != self._epoch:
            self.start_epoch(epoch)

    def state_dict(self) -> dict[str, int | str]:
        """Return the position after the last batch that the newest iterator has yielded, without prefetched batches.

        You call it after an update, and save the result in a checkpoint together with the model, for
        ``load_state_dict``. Accelerate and Lightning call this method themselves. The state contains the epoch, and the
        number of its samples that all processes together have taken, so a state from any process can be loaded with any
        number of processes. At the end of an epoch, the position is the beginning of the next epoch. An evaluation has
        no position, and is repeated. With ``fixed_batches``, an unfinished update is repeated.

        Within an update of several steps, save the state on rank 0, because a process with fewer batches than rank 0
        may already have had its last batch, and then returns the end of the update.

        Returns:
            A dictionary of numbers and strings, which JSON can hold: ``"epoch"``, ``"samples"`` (the position), and
            ``"version"``, ``"seed"``, ``"dataset_samples"`` and ``"order"``, which ``load_state_dict`` compares.

        Example:
            >>> from pa_data import KeyedDataLoader
            >>> loader = KeyedDataLoader(range(10), batch_size=4, shuffle=True)
            >>> iterator = iter(loader)
            >>> _ = next(iterator)
            >>> state = loader.state_dict()
            >>> state["epoch"], state["samples"]
            (0, 4)
        """
        place = None if self._progress.has_ended else self._iterated.place_after(self._progress.batches)
        return {
            "epoch": self._epoch + (place is None),
            "samples": 0 if self._evaluates or place is None else place,
            **self._meaning_of_position(),
        }

    def load_state_dict(self, state_dict: Mapping[str, int | str]) -> None:
        """Restore the epoch and the position of a saved state, for the next iterator.

        You call it in a resumed script, with the same state on every process, before you iterate. The loader must have
        the same dataset, seed and order as the saved loader; batch size, workers and the number of processes may
        differ. Then iterate over ``range(loader.epoch, num_epochs)`` with ``set_epoch`` as usual. The first of these
        epochs begins at the restored position.

        Args:
            state_dict: The result of ``state_dict``, with any number of processes and workers.

        Raises:
            DataError: The state has a different seed, order or dataset length, so its position would refer to different
                samples; its position is outside of the epoch or within a fixed batch; or it is not a state of such a
                loader.

        Example:
            >>> from pa_data import KeyedDataLoader
            >>> loader = KeyedDataLoader(range(10), batch_size=4, shuffle=True)
            >>> iterator = iter(loader)
            >>> _ = next(iterator)
            >>> resumed = KeyedDataLoader(range(10), batch_size=4, shuffle=True)
            >>> resumed.load_state_dict(loader.state_dict())
            >>> [batch.tolist() for batch in resumed] == [batch.tolist() for batch in iterator]
            True
        """
        expected = self._meaning_of_position()
        wrong = [name for name, value in expected.items() if state_dict.get(name) != value]
        epoch, samples = state_dict.get("epoch"), state_dict.get("samples")
        if wrong or not isinstance(epoch, int) or not isinstance(samples, int) or min(epoch, samples) < 0:
            names = wrong or ["epoch", "samples"]
            given = ", ".join(f"{name}={state_dict.get(name)!r}" for name in names)
            fitting = ", ".join(f"{name}={expected.get(name, 'a whole number >= 0')}" for name in names)
            raise DataError(
                f"The state is not one of this loader. Got {given}, expected {fitting}. Make the loader as the one "
                "that was saved, or start an epoch of your choice with start_epoch()."
            )
        self.start_epoch(epoch, samples)

    def _meaning_of_position(self) -> dict[str, int | str]:
        """Return the values that must be equal for a position to refer to the same samples."""
        return {
            "version": 1,
            "seed": self._seed,
            "dataset_samples": self._num_samples,
            "order": self.given_order.fingerprint,
        }

    def num_steps(self, epoch: int) -> int:
        """Return the number of steps of a whole epoch, which is the same on every process.

        You call it for a progress bar or a learning rate schedule. A step is one batch on each process that has samples
        left; with ``samples_per_update``, an update may have several steps (``loader.split.steps_per_update``).
        ``len(loader)`` is the number of batches of this process, which may be smaller by the last steps of an epoch.

        Args:
            epoch: The epoch number, from 0. With some orders, epochs have different lengths.

        Returns:
            The number of steps, at least 1.

        Raises:
            EmptyDatasetError: The order visits no sample in this epoch, or ``drop_last`` leaves none.

        Example:
            >>> from pa_data import KeyedDataLoader
            >>> KeyedDataLoader(range(10), batch_size=2, num_processes=2).num_steps(0)
            3
        """
        whole = self._batches.whole_epoch if epoch == self._epoch else self._plan_of_whole_epoch(epoch)
        self._check_epoch(whole.split, epoch)
        return len(whole.split)

    def _check_epoch(self, split: Split, epoch: int = 0) -> None:
        """Raise an error for a whole epoch without a step."""
        if split.num_samples == 0:
            raise EmptyDatasetError(
                f"The order of the data has an epoch without samples: 0 samples in epoch {epoch}, counted from 0. "
                "Let the order visit some samples in this epoch, or train for fewer epochs."
            )
        if len(split) == 0:
            size = f"global batches of {split.batch_size * split.num_processes} "
            size += f"(batch_size={split.batch_size} on {split.num_processes} processes)"
            smaller = "a smaller batch size, or keep the last incomplete batch"
            if self.samples_per_update is not None:
                size = f"updates of {self.samples_per_update}"
                smaller = "fewer samples per update, or keep the last incomplete update"
            raise EmptyDatasetError(
                f"drop_last leaves nothing of this dataset. Got {split.num_samples} samples, and {size}. Choose "
                f"{smaller} with drop_last=False."
            )

    def _plan_of_whole_epoch(self, epoch: int) -> EpochPlan:
        order = self.given_order.epoch_order(self._num_samples, seed=self._seed, epoch=epoch)
        return EpochPlan(order, self._split_epoch(order), self.rank, mix(self._seed, epoch))

    def fetch_for(self, step: int, rank: int) -> Any:
        """Return the batch that a process takes in a step, read immediately in this process.

        You call it to inspect a batch of any rank, for example the batch in which a loss was not finite. The random
        augmentation is the same as when you iterate. Iterators and the position are not affected. For any other
        positions, call ``fetch``.

        Args:
            step: The step of the chosen epoch, counted from the chosen position, from 0.
            rank: The rank of the process.

        Returns:
            The batch, on the device of the loader.

        Raises:
            IndexError: There is no such step or rank, or the process has no sample in this step: the last processes
                may have none in the last step of an epoch (``split.piece`` is empty).

        Example:
            >>> from pa_data import KeyedDataLoader
            >>> loader = KeyedDataLoader(range(10), batch_size=2, num_processes=2)
            >>> loader.fetch_for(step=1, rank=1)
            tensor([6, 7])
        """
        if not (piece := self.split.piece(step, rank)):
            raise IndexError(
                f"Process {rank} has no samples in step {step} of epoch {self._epoch}, counted from 0, because "
                "the step has too few for all processes. Fetch the batch of a lower rank."
            )
        return self.fetch(piece)

    def fetch(self, piece: range) -> Any:
        """Return the samples at some positions of the chosen epoch as a batch, read immediately in this process.

        You call it to inspect samples, or to repeat a part of an epoch, with the same random augmentation as when you
        iterate. A position is the place of a sample in the order of the epoch, counted from its beginning over all
        processes. Iterators and the chosen position are not affected. For the batch of a rank in a step, call
        ``fetch_for``.

        Args:
            piece: The positions, consecutive and at least one, as ``split.piece`` returns them.

        Returns:
            The batch, on the device of the loader.

        Raises:
            IndexError: A position is outside of the epoch, there are no positions, or they are not consecutive.

        Example:
            >>> from pa_data import KeyedDataLoader
            >>> KeyedDataLoader(range(10), batch_size=2).fetch(range(3, 6))
            tensor([3, 4, 5])
        """
        if not piece or piece.step != 1:
            raise IndexError(f"fetch() reads consecutive positions, at least one, got {piece}.")
        plan = self._batches.plan
        with preserve_rng_state():
            indices = plan.order.indices(piece.start, piece.stop)
            draws = piece if plan.order.repeats or isinstance(self.dataset, IterableDataset) else None
            batch = self._fetcher_for_others(plan.key, indices, draws)
        return batch if self.device is None else move_to_device(batch, self.device)

    @override
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch promises its private iterator class
        """Return an iterator over the batches of this process in the chosen epoch, from the chosen position on.

        A ``for`` loop calls it. Each iterator keeps its epoch and position if you choose others later, and
        ``state_dict`` reports the progress of the newest iterator.

        Raises:
            DataError: The length of the dataset has changed since the loader was created.
        """
        now = count_samples(self.dataset)
        if now != self._num_samples:
            raise DataError(
                f"The dataset has another length than when its loader was made. Got {now} samples of "
                f"{type(self.dataset).__name__}, and {self._num_samples} when it was made. Change a dataset between "
                "two runs, not within a run: each run makes new loaders."
            )
        if (requested := self._batches.sampler.epoch) is not None:
            self.set_epoch(requested)
        plan = self._batches.plan
        self._worker_key = extend_key(plan.key, _WORKER_STREAMS)
        batches = self._iterate(None if self._evaluates else self._epoch)
        device = self.device
        if device is not None and device.type == "cuda" and self._pins:
            batches, device = prefetched(batches, device), None
        self._iterated, self._progress = plan, EpochProgress()
        return self._progress.count(batches, plan.num_batches, plan.describe_awaited, device, non_blocking=self._pins)


def _plain_order(shuffle: bool, algorithm: str | None) -> Order:
    """Return the order that ``shuffle`` and the algorithm describe."""
    return Shuffled(algorithm) if shuffle or algorithm else Sequential()


def _two_orders(order: Order, algorithm: str) -> DataError:
    """Return the error for an order together with an algorithm."""
    return DataError(
        f"Two orders were passed. Got order={type(order).__name__}(...), algorithm={algorithm!r}. Leave the order "
        f"out, or pass order=Shuffled({algorithm!r})."
    )


def _split_batches(order: EpochOrder, *, num_processes: int, start: int = 0) -> Split:
    """Return the split of an epoch whose order makes the batches."""
    ends = order.batch_ends
    if ends is None or ends.dtype != torch.int64 or ends.numel() == 0 or int(ends[-1]) != order.num_samples:
        raise DataError(
            f"makes_batches=True needs batch_ends, int64 and ending with {order.num_samples}, got {ends}. Return the "
            f"positions after the last sample of each batch from {type(order).__name__}.batch_ends."
        )
    return BatchSplit(ends, num_processes, start=start)


_update_split = lru_cache(maxsize=8)(UpdateSplit)  # most epochs of a run have the same split


def _split_epoch(
    kind: Literal["train", "eval"],
    order: EpochOrder,
    *,
    batch_size: int,
    num_processes: int,
    drop_last: bool,
    samples_per_update: int | None,
    fixed_batches: bool,
    batch_sizes: tuple[int, ...] = (),
    start: int = 0,
) -> Split:
    """Return the split of an epoch with a batch size."""
    num_samples = order.num_samples
    if order.batch_ends is not None:
        raise DataError(
            "An order says where its batches end, and not that it makes them. Set makes_batches = True in "
            f"{type(order).__name__}."
        )
    if kind == "train":
        return _update_split(
            num_samples,
            batch_size * num_processes if samples_per_update is None else samples_per_update,
            batch_size,
            num_processes,
            drop_last=drop_last,
            start=start,
            max_batch_sizes=batch_sizes,
            fixed_batches=fixed_batches,
        )
    if kind != "eval":
        raise DataError(f'split must be "train" or "eval", got split={kind!r}.')
    if samples_per_update is not None:
        raise DataError(f"An evaluation makes no updates: leave out {samples_per_update=}.")
    if fixed_batches:
        ends = torch.arange(batch_size, num_samples + batch_size, batch_size)
        return BatchSplit(ends.clamp_(max=num_samples), num_processes)
    return EvalSplit(num_samples, batch_size, num_processes, drop_last=drop_last)
