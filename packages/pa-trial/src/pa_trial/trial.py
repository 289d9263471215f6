"""The class that users derive their trials from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic

from torch.utils.data import DataLoader as TorchDataLoader

from pa_trial.callback import PyTorchCallback
from pa_trial.context import PyTorchTrialContext
from pa_trial.data_length import data_length
from pa_trial.data_loader import DataLoader
from pa_trial.reducer import Reducer
from pa_trial.types import BatchT, Metrics, TrainingMetrics

__all__ = ["PyTorchTrial"]


class PyTorchTrial(ABC, Generic[BatchT]):
    """What is trained, and how: models, optimizers, data and the steps of a batch.

    The arguments of the methods are passed by name.

    Args:
        context: Wraps models, optimizers and schedulers, and computes gradients.
    """

    trial_context_class: ClassVar[type[PyTorchTrialContext]] = PyTorchTrialContext
    """The class of the context that a trial is made with."""

    @abstractmethod
    def __init__(self, context: PyTorchTrialContext) -> None: ...

    @abstractmethod
    def train_batch(self, batch: BatchT, epoch_idx: int, batch_idx: int) -> TrainingMetrics:
        """Train on one batch.

        Args:
            batch: What the training loader yielded, on the device.
            epoch_idx: The index of the epoch.
            batch_idx: The index of the batch, counted from 0 over the whole training.

        Returns:
            Metrics by name, or one tensor, which is the metric "loss".
        """

    @abstractmethod
    def build_training_data_loader(self) -> DataLoader | TorchDataLoader[Any]:
        """Return the loader to train on.

        A loader of torch is only accepted after ``context.experimental.disable_dataset_reproducibility_checks()``.
        """

    @abstractmethod
    def build_validation_data_loader(self) -> DataLoader | TorchDataLoader[Any]:
        """Return the loader to validate on."""

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        """Return callbacks, by the names under which their states are saved."""
        return {}

    def evaluate_batch(self, batch: BatchT, batch_idx: int) -> Metrics:
        """Validate on one batch; override either this or ``evaluate_full_dataset``.

        Args:
            batch: What the validation loader yielded, on the device.
            batch_idx: The index of the batch in this validation, on this process.

        Returns:
            Metrics by name, which ``evaluation_reducer`` says how to reduce.
        """
        raise NotImplementedError

    def evaluation_reducer(self) -> Reducer | dict[str, Reducer]:
        """Return how the metrics of ``evaluate_batch`` are reduced: all of them, or each by its name."""
        return Reducer.AVG

    def evaluate_full_dataset(self, data_loader: TorchDataLoader[Any]) -> Metrics:
        """Validate on everything, on the chief alone; override either this or ``evaluate_batch``.

        Args:
            data_loader: All samples of the validation loader; batches stay on the CPU.

        Returns:
            Metrics by name.
        """
        raise NotImplementedError

    def get_batch_length(self, batch: BatchT) -> int:
        """Return the number of records in a batch; override it for batches of a kind of your own.

        Args:
            batch: What a loader yielded.
        """
        return data_length(batch)
