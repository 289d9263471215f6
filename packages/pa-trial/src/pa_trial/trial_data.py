"""The data of a trial in training: an endless sequence of batches to train on, and batches to validate on."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from typing import Any, Protocol, Self, cast

from torch.utils.data import DataLoader as TorchDataLoader

from pa_core import EmptyDatasetError, UnsupportedConfigurationError, gather_objects
from pa_core.parts import extend_key, mix, set_epoch
from pa_trial.batch_loading import KeyedBatches
from pa_trial.data_loader import DataLoader
from pa_trial.errors import UsageError

__all__ = ["BuildsLoaders", "TrialData"]

_VALIDATION = -3  # extends the seed for what is validated on


class BuildsLoaders(Protocol):
    """The methods of a trial that build its loaders."""

    def build_training_data_loader(self) -> DataLoader | TorchDataLoader[Any]:
        """Return the loader to train on."""
        ...

    def build_validation_data_loader(self) -> DataLoader | TorchDataLoader[Any]:
        """Return the loader to validate on."""
        ...


class TrialData:
    """The loaders of a trial, as one process uses them; made by ``build``.

    Attributes:
        epoch_length: The batches of an epoch of the chief; ``sys.maxsize`` for a loader without a length.
    """

    def __init__(
        self,
        training: DataLoader | Iterable[Any],
        validation: DataLoader | Iterable[Any],
        *,
        rank: int,
        num_processes: int,
        seed: int,
        skip: int,
    ) -> None:
        validation_seed = extend_key(mix(seed), _VALIDATION)
        self._training: Iterable[Any] = (
            training.get_data_loader(repeat=True, skip=skip, num_replicas=num_processes, rank=rank, seed=seed)
            if isinstance(training, DataLoader)
            else training
        )
        self._validation: Iterable[Any] = (
            validation.get_data_loader(num_replicas=num_processes, rank=rank, seed=validation_seed)
            if isinstance(validation, DataLoader)
            else validation
        )
        self.full_validation_loader: TorchDataLoader[Any] = cast(
            "TorchDataLoader[Any]",
            validation.get_data_loader(seed=validation_seed) if isinstance(validation, DataLoader) else validation,
        )
        self.epoch_length: int = gather_objects(_length(self._training))[0]
        self._skip = skip

    @classmethod
    def build(cls, trial: BuildsLoaders, *, checks: bool, rank: int, num_processes: int, seed: int, skip: int) -> Self:
        """Have a trial build its loaders; all processes have to call this.

        Args:
            trial: The trial.
            checks: Whether loaders have to be those of this package, which can be resumed and shared out.
            rank: The number of this process.
            num_processes: The number of processes.
            seed: Decides the order of the samples, and keys their random draws; the same on all processes.
            skip: The number of batches of this process that are trained already.
        """
        training = _checked(trial.build_training_data_loader(), "build_training_data_loader", checks)
        validation = _checked(trial.build_validation_data_loader(), "build_validation_data_loader", checks)
        return cls(training, validation, rank=rank, num_processes=num_processes, seed=seed, skip=skip)

    def training_batches(self) -> Iterator[Any]:
        """Yield the batches to train on, without end; they stay where the loader has them."""
        if isinstance(self._training, KeyedBatches):
            return iter(self._training)
        return self._repeated(self._training)

    def validation_batches(self) -> Iterator[Any]:
        """Yield this process's share of the batches to validate on; it may be none."""
        return iter(self._validation)

    def close(self) -> None:
        """End the workers of the loaders."""
        for loader in (self._training, self._validation, self.full_validation_loader):
            if isinstance(loader, KeyedBatches):
                loader.close()

    def _repeated(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Iterate over a loader of the user's again and again; from its beginning, as only the user can skip there."""
        epoch = self._skip // self.epoch_length
        while True:
            set_epoch(loader, epoch)
            is_empty = True
            for batch in loader:
                is_empty = False
                yield batch
            if is_empty:
                raise _no_batch(loader, epoch)
            epoch += 1


def _checked(loader: object, method: str, checks: bool) -> Any:
    kind: type[Any] = loader.__class__
    if issubclass(kind, DataLoader):
        return loader
    if not issubclass(kind, Iterable):
        raise UsageError(
            "A trial has to return its data loaders.",
            given=f"{kind.__name__} from {method}",
            expected="a pa_trial.DataLoader",
            do=f"Return the loader from {method}.",
        )
    if checks:
        raise UnsupportedConfigurationError(
            "Training with this data loader could not be resumed, nor shared out among processes.",
            given=f"{kind.__module__}.{kind.__qualname__} from {method}",
            expected="a pa_trial.DataLoader, which takes the same arguments as torch's",
            do="Return a pa_trial.DataLoader; or, if you see to both yourself, you can disable this check by calling "
            "context.experimental.disable_dataset_reproducibility_checks().",
        )
    return loader


def _length(loader: object) -> int:
    try:
        return len(cast("Sized", loader))
    except (TypeError, NotImplementedError):
        return sys.maxsize


def _no_batch(loader: object, epoch: int) -> EmptyDatasetError:
    return EmptyDatasetError(
        "The training data loader has no batch.",
        given=f"a {type(loader).__name__} that yields nothing in epoch {epoch}",
        expected="at least one batch in each epoch",
        do="Look at how the loader was made; an iterator, which can be gone through once, is a common cause.",
    )
