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


class PyTorchTrial(ABC, Generic[BatchT]):
    """The base class of trials: derive from it to define models, optimizers, data, and the training step.

    Create models, optimizers and schedulers in ``__init__``, and wrap them with the context. Methods are called with
    keyword arguments, so keep the names of their parameters.

    Args:
        context: Wraps models, optimizers and schedulers, and computes gradients.

    Example:
        >>> import tempfile
        >>> import torch
        >>> import pa_trial
        >>> class Line(pa_trial.PyTorchTrial[list[torch.Tensor]]):
        ...     def __init__(self, context: pa_trial.PyTorchTrialContext) -> None:
        ...         self.context = context
        ...         self.model = context.wrap_model(torch.nn.Linear(1, 1))
        ...         self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
        ...
        ...     def build_training_data_loader(self) -> pa_trial.DataLoader:
        ...         x = torch.linspace(-1, 1, 16).unsqueeze(1)
        ...         return pa_trial.DataLoader(torch.utils.data.TensorDataset(x, 2 * x), batch_size=4)
        ...
        ...     build_validation_data_loader = build_training_data_loader
        ...
        ...     def train_batch(self, batch: list[torch.Tensor], epoch_idx: int, batch_idx: int) -> torch.Tensor:
        ...         loss = torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])
        ...         self.context.backward(loss)
        ...         self.context.step_optimizer(self.optimizer)
        ...         return loss
        ...
        ...     def evaluate_batch(self, batch: list[torch.Tensor], batch_idx: int) -> pa_trial.Metrics:
        ...         return {"loss": torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])}
        >>> with tempfile.TemporaryDirectory() as folder, pa_trial.init(seed=0, checkpoint_dir=folder) as context:
        ...     pa_trial.Trainer(Line(context), context).fit(max_length=pa_trial.Epoch(2), checkpoint_policy="none")
    """

    trial_context_class: ClassVar[type[PyTorchTrialContext]] = PyTorchTrialContext
    """The class of the context that a trial is created with."""

    @abstractmethod
    def __init__(self, context: PyTorchTrialContext) -> None: ...

    @abstractmethod
    def train_batch(self, batch: BatchT, epoch_idx: int, batch_idx: int) -> TrainingMetrics:
        """Train on a batch: compute the loss, and call ``context.backward`` and ``context.step_optimizer``.

        Args:
            batch: A batch of the training loader, on the device.
            epoch_idx: The index of the epoch, counted from 0.
            batch_idx: The index of the batch, counted from 0 over the whole training.

        Returns:
            Metrics by name, or a single tensor, which is the metric "loss". Each metric is a number, or a tensor or
            array of numbers, with the same names in each batch; ``fit`` reports their means.
        """

    @abstractmethod
    def build_training_data_loader(self) -> DataLoader | TorchDataLoader[Any]:
        """Return the loader to train on; ``fit`` calls it once on each process.

        Pass ``context.get_per_slot_batch_size()`` as its batch size; the loader is sharded over the processes. A loader
        of torch is only accepted after ``context.experimental.disable_dataset_reproducibility_checks()``.
        """

    @abstractmethod
    def build_validation_data_loader(self) -> DataLoader | TorchDataLoader[Any]:
        """Return the loader to validate on; ``fit`` calls it once on each process, and shards it."""

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        """Return the callbacks of the training, by the names under which their state is saved; by default none.

        ``fit`` calls it once. Events are called in the order of the dictionary.

        Example:
            >>> import pa_trial
            >>> def build_callbacks(self):  # a method of a trial
            ...     return {"printing": pa_trial.PyTorchCallback()}
        """
        return {}

    def evaluate_batch(self, batch: BatchT, batch_idx: int) -> Metrics:
        """Validate on a batch; override either this or ``evaluate_full_dataset``.

        Args:
            batch: A batch of the validation loader, on the device.
            batch_idx: The index of the batch in this validation, on this process.

        Returns:
            Metrics by name: numbers, or arrays of numbers. ``evaluation_reducer`` decides how they are reduced.
        """
        raise NotImplementedError

    def evaluation_reducer(self) -> Reducer | dict[str, Reducer]:
        """Return how the metrics of ``evaluate_batch`` are reduced: all of them, or each by its name.

        Override it for metrics that are not means; ``Reducer`` has an example. The default is ``Reducer.AVG``.
        """
        return Reducer.AVG

    def evaluate_full_dataset(self, data_loader: TorchDataLoader[Any]) -> Metrics:
        """Validate on the whole dataset, on the chief alone; override either this or ``evaluate_batch``.

        Args:
            data_loader: Yields all validation batches; ``context.to_device`` moves them to the device.

        Returns:
            Metrics by name: values that can be written as JSON, tensors and NumPy values among them.

        Example:
            >>> def evaluate_full_dataset(self, data_loader):  # a method of a trial
            ...     correct = 0
            ...     for batch in data_loader:
            ...         inputs, labels = self.context.to_device(batch)
            ...         correct += (self.model(inputs).argmax(1) == labels).sum()
            ...     return {"accuracy": correct / len(data_loader.dataset)}
        """
        raise NotImplementedError

    def get_batch_length(self, batch: BatchT) -> int:
        """Return the number of records in a batch; override it for custom classes of batches.

        Args:
            batch: A batch of either loader.
        """
        return data_length(batch)
