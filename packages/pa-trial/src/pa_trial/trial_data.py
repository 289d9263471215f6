"""The data of a trial in training: an endless sequence of batches to train on, and batches to validate on."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Generator, Iterable, Iterator, Sized
from itertools import repeat
from typing import Any, cast

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler

from pa_data import RequestedDataLoader, UpdateSplit, loader_parts, set_epoch
from pa_data.rng import extend_key, mix
from pa_distributed import gather_objects
from pa_trial.batch_order import EpochOrders, KeyedShare, UpdateOrders
from pa_trial.data_loader import DataLoader
from pa_trial.errors import ConfigurationError, EmptyLoaderError, UnsupportedConfigurationError, UsageError

_VALIDATION = -3  # extends the seed for the validation data


class TrialData:
    """The loaders of a trial on a process; all processes have to make it.

    A ``DataLoader`` of this package is shared out and, in training, repeated and entered at any batch. A validation has
    its own random seeds, which are the same each time, so it does not change the training.

    Args:
        training: The return value of ``build_training_data_loader``.
        validation: The return value of ``build_validation_data_loader``.
        checks: Whether loaders have to come from this package, which can be resumed and sharded.
        rank: The number of this process.
        num_processes: The number of processes.
        seed: Determines the order of the samples and their random draws; the same on all processes.
        skip: The number of batches of this process that are trained already.

    Attributes:
        epoch_length: The number of batches in an epoch on the chief; ``sys.maxsize`` for a loader without a length.
        weights: For each training batch, the weight of its loss, and whether it is the last piece of its update.
        full_validation_loader: Yields all validation data, for ``evaluate_full_dataset``.

    Raises:
        UnsupportedConfigurationError: A loader is not from this package, though it has to be.
        UsageError: A method returned no loader.
        ConfigurationError: A loader is shared out already.
        EmptyLoaderError: The training loader has no batches.
    """

    def __init__(
        self, training: Any, validation: Any, *, checks: bool, rank: int, num_processes: int, seed: int, skip: int
    ) -> None:
        self._given: dict[str, Any] = {"training": training, "validation": validation}
        for name, loader in self._given.items():
            _check(loader, f"build_{name}_data_loader", checks, num_processes)
        self._training, self._validation, whole = training, validation, validation
        if isinstance(training, DataLoader):
            self._training = training.get_data_loader(True, skip, num_processes, rank, seed=seed)
        if isinstance(validation, DataLoader):
            own_seed = extend_key(mix(seed), _VALIDATION)
            self._validation = validation.get_data_loader(num_replicas=num_processes, rank=rank, seed=own_seed)
            whole = validation.get_data_loader(seed=own_seed)
        self.full_validation_loader: TorchDataLoader[Any] = whole
        self.epoch_length: int = gather_objects(_length(self._training))[0]
        if self.epoch_length == 0:
            raise _no_batch(self._given["training"].__class__, "without a batch")
        self.weights: Iterator[tuple[float | None, bool]] = repeat((None, True))
        self._skip = skip
        self._iterators: weakref.WeakSet[Generator[Any]] = weakref.WeakSet()

    def cut(self, samples_per_update: int, per_device_batch_size: int) -> None:
        """Cut the training batches into pieces of updates, which the length of an epoch and ``skip`` then count.

        Args:
            samples_per_update: The number of samples of all processes in an update.
            per_device_batch_size: The most samples of a piece.

        Raises:
            ConfigurationError: The order of the samples is not known.
            EmptyLoaderError: The samples do not fill an update.
        """
        given, share = self._given["training"], getattr(self._training, "batch_sampler", None)
        if not isinstance(share, KeyedShare) or not isinstance(order := share.order, EpochOrders):
            do = "Return a pa_trial.DataLoader without a sampler or a batch sampler, or pass aggregation_frequency."
            raise ConfigurationError("This loader cannot be cut into updates.", given=_describe(given), do=do)
        sizes = order.num_samples, samples_per_update, per_device_batch_size, share.stride
        share.order = updates = UpdateOrders(**vars(order), split=UpdateSplit(*sizes, drop_last=order.drop_last))
        self.epoch_length = len(updates)
        if self.epoch_length == 0:
            raise _no_batch(given.__class__, f"whose samples do not fill an update of {samples_per_update}")
        self.weights = ((weight, is_last) for *_, weight, is_last in updates.pieces(share.first, share.stride))

    def training_batches(self) -> Iterator[Any]:
        """Yield the batches to train on, without end; they are not moved to the device."""
        own = isinstance(self._training, RequestedDataLoader)
        return self._iterate(self._training) if own else self._repeated()

    def validation_batches(self) -> Iterator[Any]:
        """Yield this process's share of the batches to validate on, which may be empty."""
        return self._iterate(self._validation)

    def describe(self) -> dict[str, str]:
        """Return properties that have to be the same on all processes, by name."""
        return {f"{name} loader": _describe(loader) for name, loader in self._given.items()}

    def close(self) -> None:
        """End the workers of the loaders."""
        for iterator in list(self._iterators):
            iterator.close()
        for loader in (self._training, self._validation, self.full_validation_loader):
            if isinstance(loader, RequestedDataLoader):
                loader.close()

    def _iterate(self, loader: Iterable[Any]) -> Iterator[Any]:
        batches = iter(loader)
        if issubclass(batches.__class__, Generator):  # a loader with workers, which end when it is closed
            self._iterators.add(cast("Generator[Any]", batches))
        return batches

    def _repeated(self) -> Iterator[Any]:
        """Iterate over a loader of the user's without end, always from its beginning, because it cannot skip."""
        loader, epoch = self._training, self._skip // self.epoch_length
        while True:
            set_epoch(loader, epoch)
            is_empty = True
            for batch in loader:
                is_empty = False
                yield batch
            if is_empty:
                raise _no_batch(loader.__class__, f"that yields nothing in epoch {epoch}")
            epoch += 1


def _check(loader: object, method: str, checks: bool, num_processes: int) -> None:
    kind: type[Any] = loader.__class__
    if not issubclass(kind, Iterable):
        problem = f"A trial has to return its data loaders, got {kind.__name__} from {method}."
        raise UsageError(problem, do=f"Return a pa_trial.DataLoader from {method}.")
    if checks and not issubclass(kind, DataLoader):
        raise UnsupportedConfigurationError(
            "Training with this data loader could be neither resumed nor sharded over processes.",
            given=f"{kind.__module__}.{kind.__qualname__} from {method}",
            do="Return a pa_trial.DataLoader, which takes the same arguments as torch's; or, if you handle both "
            "yourself, you can disable this check by calling "
            "context.experimental.disable_dataset_reproducibility_checks().",
        )
    parts = loader_parts(loader).values() if num_processes > 1 and issubclass(kind, DataLoader) else ()
    for part in parts:
        if issubclass(part.__class__, DistributedSampler) and part.num_replicas > 1:
            raise ConfigurationError(
                "The samples of this data loader would be sharded twice.",
                given=f"a pa_trial.DataLoader with a DistributedSampler of torch, from {method}",
                do="Leave the sampler out, and pass shuffle=True for a random order: trials shard batches themselves.",
            )


def _describe(loader: Any) -> str:
    kind: type = loader.__class__
    if not issubclass(kind, DataLoader):
        return kind.__name__
    size = "" if loader.batch_size is None else f" of {loader.batch_size}"
    source = loader.batch_sampler if loader.batch_size is None else loader.sampler
    generator = "" if loader.generator is None else f", a generator seeded with {loader.generator.initial_seed()}"
    return f"{_length(loader)} batches{size} by {type(source).__name__}{generator}"


def _length(loader: object) -> int:
    try:
        return len(cast("Sized", loader))
    except (TypeError, NotImplementedError):
        return sys.maxsize


def _no_batch(kind: type, problem: str) -> EmptyLoaderError:
    return EmptyLoaderError(
        "The training data loader has no batches.",
        given=f"a {kind.__name__} {problem}",
        do="Check how the dataset and its sampler were made. Common causes are a wrong path, drop_last with few "
        "samples, and an iterator, which can be used only once.",
    )
