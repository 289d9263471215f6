"""The loader whose batches are a function of seed, epoch, position and rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from functools import partial
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
    """Return the length of a dataset that a keyed order can be made for.

    Raises:
        DataError: If the dataset has no length.
        EmptyDatasetError: If there is no sample.
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
    return DataError(
        "A keyed order needs a dataset with a length, whose samples are indexed by integers or come in one order. "
        f"Got {given}. Give the dataset __len__ and __getitem__, or load it with a plain torch.utils.data.DataLoader."
    )


def _check_stream(order: Order, persistent_workers: bool) -> None:
    """Raise an error for options that a stream cannot follow."""
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
    """Raise an error for options that have no effect, or no meaning, with an order that makes the batches."""
    kind = type(order).__name__
    if samples_per_update is not None:
        raise DataError(f"The batches of an order have any size: leave out {samples_per_update=} with order={kind}.")
    if batch_size not in (None, 1):
        raise DataError(
            f"batch_size has no effect with an order that makes the batches. Got batch_size={batch_size}, and "
            f"order={kind}. Leave batch_size out, and give {kind} what it makes its batches by."
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
    """Raise an error for options that contradict each other or the promise of an order."""
    if unknown := options.keys() - LoadingOptions.__annotations__.keys():
        raise TypeError(f"A keyed loader takes no {', '.join(sorted(unknown))}: its order says which samples come.")
    if not 0 <= rank < num_processes:
        raise DataError(f"A rank is from 0 to num_processes - 1, got {rank=}, {num_processes=}.")
    timeout = options.get("timeout", 0)
    if timeout > 0 and options.get("num_workers", 0) == 0:
        raise DataError(f"A timeout is for workers: leave out {timeout=}, or pass num_workers.")
    if not in_order:
        raise DataError("A keyed loader yields its batches in order: leave out in_order=False.")


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
    """A `torch.utils.data.DataLoader` that can begin any epoch at any sample, with the same batches.

    The order of an epoch depends on ``(seed, epoch)`` alone, and which part of it this process takes in which step on
    the split (`UpdateSplit`, `BatchSplit` or `EvalSplit`), so an interrupted epoch
    resumes at the next sample on any number of processes. With keyed augmentation the global RNGs of Python, NumPy and
    torch are seeded from ``(seed, epoch, sample index)`` before each sample is fetched: what is drawn depends neither
    on the number of workers nor on where the iteration began. After each batch the main process's own RNG states are as
    they were, and making an iterator draws nothing from them. Generators that a dataset owns itself are not keyed.

    Batches of datasets that only hold tensors, and of those that are a `SupportsFetchBatch`, are fetched
    whole, without keys and several times as fast. They equal those that torch's default collation makes.

    An epoch is chosen by `set_epoch` or `start_epoch`; until then it is epoch 0. Iterating again without choosing
    another repeats the same epoch from the same position. Seeking costs nothing: no sample before the position is
    loaded. `state_dict` says where the newest iterator is, and `load_state_dict` goes there.

    ``Accelerator.prepare`` of accelerate leaves the loader as it is, and ``save_state`` saves its position. Lightning
    saves it too, and chooses the epochs; pass ``use_distributed_sampler=False`` to its trainer.

    Args:
        dataset: A dataset with a length and integer indices, or an ``IterableDataset`` with a length, which each
            process and worker reads from its beginning to find its own samples. It is what ``loader.dataset`` returns.
        batch_size: The number of samples that this process takes in a full step; None or left out for an order that
            makes the batches.
        shuffle: Whether each epoch has its own random order. In training this is the dataset's order, if it brings one
            as its ``default_order``.
        split: How a global batch is shared, and what happens to the last one: ``"train"`` or ``"eval"``.
        seed: The seed of the run; the same on every process.
        rank: The number of this process.
        num_processes: The number of processes that share each global batch.
        device: Where the tensors of each batch are moved; by default they stay.
        drop_last: Leaves out the samples that do not fill a global batch, or an update.
        samples_per_update: Divides the epoch into updates of so many samples, on any number of processes, see
            `UpdateSplit`; ``batch_size`` is then what this process takes in a step at the most.
        fixed_batches: Makes the same batches, of at most ``batch_size`` samples, on any number of processes. Training
            cuts updates as `UpdateSplit` does, and an evaluation deals its batches in turn.
        batches: The numbers of the batches to load, in this order; None loads all batches. Use it to continue a job
            that was interrupted, such as predictions. The samples of a dataset with indices get the same random numbers
            as in an epoch of all batches. A last batch that is shorter than the others must come last.
        collate_fn: Makes a batch of a list of samples; by default torch's own collation.
        num_workers: The number of processes that load ahead; 0 loads in this process.
        keyed_augmentation: ``False`` leaves the RNGs alone, which saves some 7 microseconds a
            sample and, without workers, some 50 a batch. The draws are then not reproducible. Ranges, lists,
            arrays, tables of Hugging Face's `datasets` without a transform, and subsets of them cannot draw, and take
            hardly longer with ``True``. A dataset with ``__getitems__`` then fetches all samples of a batch at once, as
            torch does; keyed samples are fetched one by one.
        whole_batches: ``True`` insists on fetching whole batches, ``False`` forbids it. By default batches
            are fetched whole where the dataset can and there is no ``collate_fn``.
        algorithm: The name of the order to reproduce, see `epoch_order`.
        order: The order of the epochs, instead of ``shuffle``; None for what ``shuffle`` says.
        pin_memory: Copies each batch into pinned memory first, so that moving it does not block. On CUDA it is then
            moved one batch ahead, while the device computes.
        timeout: The number of seconds to wait for a worker; 0 waits forever.
        worker_init_fn: Is called in each worker with its number.
        multiprocessing_context: How workers are started.
        generator: Seeds the workers' own RNGs and nothing else: the order comes from ``seed``. By default
            a generator of the loader's own.
        prefetch_factor: The number of batches that each worker loads ahead.
        persistent_workers: Keeps the workers for the next epoch. Then only one iterator is live at a time:
            an older one raises a ``RuntimeError`` when it is used again.
        pin_memory_device: See torch.
        in_order: Must be true, since the order is what this loader promises.

    Attributes:
        device: Where the tensors of each batch are moved.
        rank: The number of this process.
        num_processes: The number of processes that share each global batch.
        given_order: The order of all epochs.
        keyed_augmentation: Whether the RNGs are seeded for each sample.
        whole_batches: Whether batches are fetched whole.
        samples_per_update: As passed.
        fixed_batches: As passed.

    Raises:
        TypeError: If the order is something else.
        DataError: If an option is out of its range, or the dataset has no length, or there are two orders.
        EmptyDatasetError: If there is no sample, or ``drop_last`` leaves none.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> loader = KeyedDataLoader(TensorDataset(torch.arange(10)), batch_size=4, shuffle=True, seed=3)
        >>> whole_epoch = [batch[0].tolist() for batch in loader]
        >>> loader.start_epoch(0, position=4)
        >>> [batch[0].tolist() for batch in loader] == whole_epoch[1:]
        True
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
        """The seed of the run; setting it takes effect with the next iterator."""
        return self._seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._seed = seed
        self.start_epoch(self._epoch, self.position)

    @property
    def algorithm(self) -> str | None:
        """The name of the order to reproduce, None for the default; setting it is for the next iterator."""
        return self.given_order.algorithm if isinstance(self.given_order, Shuffled) else None

    @algorithm.setter
    def algorithm(self, algorithm: str | None) -> None:
        before = self.given_order
        if not before.is_plain:
            if algorithm is not None:
                raise _two_orders(before, algorithm)
            return
        self.given_order = _plain_order(self.shuffle, algorithm)
        try:
            self.start_epoch(self._epoch, self.position)
        except DataError:
            self.given_order = before
            raise

    @property
    def epoch(self) -> int:
        """The chosen epoch."""
        return self._epoch

    @property
    def position(self) -> int:
        """The number of samples of the chosen epoch, over all processes, that the iterator leaves out."""
        return self.split.start

    @property
    def order(self) -> EpochOrder:
        """The order of the chosen epoch."""
        return self._batches.plan.order

    @property
    def split(self) -> Split:
        """The split of the chosen epoch from the chosen position on; its step 0 is the next one."""
        return self._batches.plan.split

    def start_epoch(self, epoch: int, position: int = 0) -> None:
        """Choose what the next iterator yields; one that is live already keeps its own epoch.

        Args:
            epoch: The number of the epoch, which keys the order and the draws.
            position: The number of samples of this epoch, over all processes, that are trained on already.

        Raises:
            DataError: If the position is not within the epoch, or is not 0 in an evaluation.
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
        """Choose how many samples each process takes in a step at the most, for the next iterator.

        A training loader needs ``samples_per_update``, so that updates stay as they are; it deals their steps in
        proportion to these numbers. An evaluation takes the smallest of them on each process.

        Args:
            sizes: The number of samples of each process, at least 1; the same numbers on all of them.

        Raises:
            DataError: The batches follow from an order or from ``fixed_batches``, or updates from batches.
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
        size = min(sizes) if self._evaluates else max(sizes)
        # Dealt evenly, a step of three samples is the one piece that may be larger than a batch.
        is_even = self._evaluates or (len(set(sizes)) == 1 and size != _MAY_BE_EXCEEDED)
        of_each = () if is_even else tuple(sizes)
        self._split_epoch = partial(self._split_epoch, batch_size=size, batch_sizes=of_each)
        vars(self)["batch_size"] = size
        self.start_epoch(self._epoch, self.position)

    def set_epoch(self, epoch: int) -> None:
        """Choose an epoch for the next iterator, from its first sample on; the chosen one keeps its position.

        So a loop over epochs may begin with the epoch in which it was resumed. As ``DistributedSampler`` has it.

        Args:
            epoch: The number of the epoch.
        """
        if epoch != self._epoch:
            self.start_epoch(epoch)

    def state_dict(self) -> dict[str, int | str]:
        """Return where the newest iterator is: after the batch that it yielded last, no matter what was prefetched.

        It holds the epoch and the number of its samples that all processes together have taken, so one state serves
        any number of processes. At the end of an epoch it is the beginning of the next one. An evaluation has no
        position: it is repeated. With ``fixed_batches``, an update of which batches are left begins again.

        Save it at the end of an update, or on rank 0: within an update, a process that has fewer batches of it than
        rank 0 may have had its last one, and takes the update to be over.
        """
        place = None if self._progress.has_ended else self._iterated.place_after(self._progress.batches)
        return {
            "epoch": self._epoch + (place is None),
            "samples": 0 if self._evaluates or place is None else place,
            **self._meaning_of_position(),
        }

    def load_state_dict(self, state_dict: Mapping[str, int | str]) -> None:
        """Choose the epoch and the position of a `state_dict`, for the next iterator.

        Args:
            state_dict: What `state_dict` returned, on any number of processes, with any number of workers.

        Raises:
            DataError: The state has another seed, order or length of the dataset, where the position would
                stand for other samples, or it comes from something else.
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
        """What must be the same for a position to stand for the same samples."""
        return {
            "version": 1,
            "seed": self._seed,
            "dataset_samples": self._num_samples,
            "order": self.given_order.fingerprint,
        }

    def num_steps(self, epoch: int) -> int:
        """Return the number of steps of a whole epoch, which is the same on every process.

        Args:
            epoch: The number of the epoch.

        Raises:
            EmptyDatasetError: The order visits no sample in this epoch, or ``drop_last`` leaves none.
        """
        whole = self._batches.whole_epoch if epoch == self._epoch else self._plan_of_whole_epoch(epoch)
        self._check_epoch(whole.split, epoch)
        return len(whole.split)

    def _check_epoch(self, split: Split, epoch: int = 0) -> None:
        """Raise an error for a split of a whole epoch that has no step."""
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
                smaller = "fewer samples per update, or keep the last incomplete one"
            raise EmptyDatasetError(
                f"drop_last leaves nothing of this dataset. Got {split.num_samples} samples, and {size}. Choose "
                f"{smaller} with drop_last=False."
            )

    def _plan_of_whole_epoch(self, epoch: int) -> EpochPlan:
        order = self.given_order.epoch_order(self._num_samples, seed=self._seed, epoch=epoch)
        return EpochPlan(order, self._split_epoch(order), self.rank, mix(self._seed, epoch))

    def fetch_for(self, step: int, rank: int) -> Any:
        """Return the batch that a process takes in a step, fetched here and now.

        Args:
            step: The step of the chosen epoch, counted from the chosen position.
            rank: The number of the process.
        """
        return self.fetch(self.split.piece(step, rank))

    def fetch(self, piece: range) -> Any:
        """Return the samples at some positions of the chosen epoch as a batch, fetched here and now.

        Args:
            piece: The positions.
        """
        plan = self._batches.plan
        with preserve_rng_state():
            indices = plan.order.indices(piece.start, piece.stop)
            draws = piece if plan.order.repeats or isinstance(self.dataset, IterableDataset) else None
            batch = self._fetcher_for_others(plan.key, indices, draws)
        return batch if self.device is None else move_to_device(batch, self.device)

    @override
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch promises its private iterator class
        """Iterate the chosen epoch from the chosen position on.

        Raises:
            DataError: The dataset has another length than when the loader was made.
        """
        now = count_samples(self.dataset)
        if now != self._num_samples:
            raise DataError(
                f"The dataset has another length than when its loader was made. Got {now} samples of "
                f"{type(self.dataset).__name__}, and {self._num_samples} when it was made. Change a dataset between "
                "two runs, not within one: each run makes new loaders."
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
    return Shuffled(algorithm) if shuffle or algorithm else Sequential()


def _two_orders(order: Order, algorithm: str) -> DataError:
    return DataError(
        f"Two orders were passed. Got order={type(order).__name__}(...), algorithm={algorithm!r}. Leave the order "
        f"out, or pass order=Shuffled({algorithm!r})."
    )


def _split_batches(order: EpochOrder, *, num_processes: int, start: int = 0) -> Split:
    ends = order.batch_ends
    if ends is None or ends.dtype != torch.int64 or ends.numel() == 0 or int(ends[-1]) != order.num_samples:
        raise DataError(
            f"makes_batches=True needs batch_ends, int64 and ending with {order.num_samples}, got {ends}. Return the "
            f"positions after the last sample of each batch from {type(order).__name__}.batch_ends."
        )
    return BatchSplit(ends, num_processes, start=start)


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
    num_samples = order.num_samples
    if order.batch_ends is not None:
        raise DataError(
            "An order says where its batches end, and not that it makes them. Set makes_batches = True in "
            f"{type(order).__name__}."
        )
    if kind == "train":
        return UpdateSplit(
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
