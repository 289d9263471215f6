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

    Create models, optimizers and schedulers in ``__init__``, and wrap them with the context. Implement ``train_batch``,
    the two loader methods, and either ``evaluate_batch`` or ``evaluate_full_dataset``. ``Trainer(trial,
    context).fit(...)`` trains it. Methods are called with keyword arguments, so keep the names of their parameters.

    Args:
        context: The context that ``init`` yields. It wraps models, optimizers and schedulers, and computes gradients.

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
    """The class of the context that ``load_trial_from_checkpoint_path`` creates.

    Override it only for your own subclass of ``PyTorchTrialContext``.
    """

    @abstractmethod
    def __init__(self, context: PyTorchTrialContext) -> None: ...

    @abstractmethod
    def train_batch(self, batch: BatchT, epoch_idx: int, batch_idx: int) -> TrainingMetrics:
        """Train on a batch: compute the loss, and call ``context.backward`` and ``context.step_optimizer``.

        Implement it in your trial. ``fit`` calls it for each batch of this process, with models in training mode. See
        the example in `PyTorchTrial`.

        Args:
            batch: A batch of the training loader, on the device.
            epoch_idx: The index of the epoch, counted from 0.
            batch_idx: The index of the batch, counted from 0 over the whole training, even after a resume.

        Returns:
            Metrics by name, or a single tensor, which is the metric "loss". Each metric is a number, or a tensor or
            array of numbers, with the same names in each batch; ``fit`` reports their means. Return None for a metric
            that has no value in this batch.
        """

    @abstractmethod
    def build_training_data_loader(self) -> DataLoader | TorchDataLoader[Any]:
        """Return the loader to train on.

        Implement it in your trial. ``fit`` calls it once on each process, and divides its batches among the processes.
        See the example in `PyTorchTrial`.

        Returns:
            A ``pa_trial.DataLoader`` with ``batch_size=context.get_per_slot_batch_size()``, or with any other batch
            size of a process. A torch loader is accepted only after
            ``context.experimental.disable_dataset_reproducibility_checks()``, and is not divided.
        """

    @abstractmethod
    def build_validation_data_loader(self) -> DataLoader | TorchDataLoader[Any]:
        """Return the loader to validate on.

        Implement it in your trial. ``fit`` calls it once on each process, and divides its batches among the processes
        for ``evaluate_batch``. See the example in `PyTorchTrial`.

        Returns:
            A ``pa_trial.DataLoader``. A torch loader is accepted only after
            ``context.experimental.disable_dataset_reproducibility_checks()``, and is not divided.
        """

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        """Return the callbacks of the training, by name; by default there are none.

        Override it to add callbacks. ``fit`` calls it once on each process, before ``on_trial_startup``.

        Returns:
            Instances of ``PyTorchCallback``. Their state is saved in checkpoints under these names, so keep the names
            the same across restarts. Events are called in the order of the dictionary.

        Example:
            >>> import pa_trial
            >>> class PrintEpochs(pa_trial.PyTorchCallback):
            ...     def on_training_epoch_start(self, epoch_idx):
            ...         print("epoch", epoch_idx)
            >>> def build_callbacks(self):  # a method of a trial
            ...     return {"printing": PrintEpochs()}
        """
        return {}

    def evaluate_batch(self, batch: BatchT, batch_idx: int) -> Metrics:
        """Validate on a batch, and return its metrics.

        Override either this or ``evaluate_full_dataset``. ``fit`` calls it in each validation for each batch of this
        process, with models in eval mode and without gradients. See the example in `PyTorchTrial`.

        Args:
            batch: A batch of the validation loader, on the device.
            batch_idx: The index of the batch in this validation on this process, counted from 0.

        Returns:
            Metrics by name: numbers, or tensors or arrays of numbers, with the same names in each batch.
            ``evaluation_reducer`` decides how they are reduced over the batches.

        Raises:
            NotImplementedError: The trial does not override it. ``fit`` checks this before it trains.
        """
        raise NotImplementedError

    def evaluation_reducer(self) -> Reducer | dict[str, Reducer]:
        """Return how the metrics of ``evaluate_batch`` are reduced over batches and processes.

        The default is ``Reducer.AVG``, the mean. Override it for metrics that are not means. ``fit`` calls it in each
        validation.

        Returns:
            A ``Reducer`` for all metrics, or a dictionary with the ``Reducer`` of each metric by its name.

        Example:
            >>> from pa_trial import Reducer
            >>> def evaluation_reducer(self):  # a method of a trial
            ...     return {"loss": Reducer.AVG, "num_errors": Reducer.SUM}
        """
        return Reducer.AVG

    def evaluate_full_dataset(self, data_loader: TorchDataLoader[Any]) -> Metrics:
        """Validate on the whole dataset, and return its metrics.

        Override either this or ``evaluate_batch``, which is faster on several processes. ``fit`` calls it in each
        validation, but only on the chief (the process of rank 0), while the others wait. Therefore, do not call
        collectives in it. Models are in eval mode, and there are no gradients.

        Args:
            data_loader: An iterable of all validation batches; ``context.to_device`` moves them to the device.

        Returns:
            Metrics by name. The values must be tensors, NumPy values, or other values that can be written as JSON.

        Raises:
            NotImplementedError: The trial does not override it. ``fit`` checks this before it trains.

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
        """Return the number of records (samples) in a batch; by default ``pa_trial.data_length(batch)``.

        Override it for batches that are not a tensor or an array, or a dict, a list or a tuple of them. ``fit`` calls
        it to report the number of records, and for ``weigh_by_records``.

        Args:
            batch: A batch of either loader.

        Raises:
            ArgumentTypeError: The default cannot count batches of this class. The error is also a ``TypeError``.
            ConfigurationError: A dict, a list or a tuple is empty. The error is also a ``ValueError``.

        Example:
            >>> def get_batch_length(self, batch):  # a method of a trial whose batches are graphs
            ...     return batch.num_graphs
        """
        return data_length(batch)
