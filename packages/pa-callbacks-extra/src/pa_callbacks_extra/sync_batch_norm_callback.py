"""Batch norm over all processes of a run."""

from __future__ import annotations

from typing import Any

from torch import nn
from typing_extensions import override

from pa_callbacks_extra.sync_batch_norm_layers import Participants, restore_layers, synchronise_layers
from pa_core import AnyTrainer, ConfigurationError, TrainerCallback
from pa_core.data import DataLoaderSlice, KeyedDataLoader
from pa_core.distributed import num_processes


class ConvertSyncBatchNormCallback(TrainerCallback):
    """Makes batch norm layers normalize over the batches of all processes in a run.

    Use it to train with small batches on many processes, because otherwise each process normalizes over only a few
    samples. With this callback, training on two processes with batches of 16 equals training on one process with
    batches of 32, up to rounding. Outputs, gradients and running statistics are the same, even if the last batch is
    smaller or does not reach all processes. The callback has no arguments and adds nothing to training states.

    On an accelerator the layers are ``torch.nn.SyncBatchNorm`` during the run. On a CPU, which that class does not
    support, they are layers of this package with the same state and the same results. After the run the model has its
    own layers again, no matter how the run ended. During the run, layers keep their parameters, buffers, hooks and
    methods. On a single process, no layer is converted.

    In evaluation mode, no statistics are exchanged. Layers without running statistics then normalize over the batch of
    their process, as torch's layers do.

    Every process has to call the model the same number of times in a training step. So if you raise a
    ``StopTrainingError`` on a single process, do so in a callback, not in ``calculate_train_batch_loss``.

    Raises:
        ConfigurationError: ``train()`` or ``evaluate()`` raises it if the trainer was created with ``reproducible``,
            because its results must then not depend on the number of processes.
        UnsupportedConfigurationError: ``train()`` or ``evaluate()`` raises it if a layer is a subclass of a torch batch
            norm layer with a custom ``forward``, which would be lost.

    Example:
        >>> import torch
        >>> from pa_callbacks_extra import ConvertSyncBatchNormCallback
        >>> from pa_core import DEFAULT_CALLBACKS, Trainer
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> samples = torch.utils.data.TensorDataset(torch.randn(16, 2), torch.randn(16, 1))
        >>> callbacks = [*DEFAULT_CALLBACKS, ConvertSyncBatchNormCallback]
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=callbacks)
        >>> trainer.train(samples, num_epochs=1)  # on several processes, too  # doctest: +ELLIPSIS
        Training starts: 1 epoch ...
        >>> type(model[1]).__name__
        'BatchNorm1d'
    """

    def __init__(self) -> None:
        self._participants: Participants | None = None
        self._converted: nn.Module | None = None
        self._next_step = 0

    @override
    def on_prepare_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Convert the layers, if there are several processes.

        Args:
            trainer: The trainer.
            **kwargs: Not used.

        Raises:
            ConfigurationError: The run is reproducible on any number of processes.
            UnsupportedConfigurationError: A layer has a custom ``forward``.
        """
        self._restore()
        if trainer.reproducible:
            raise ConfigurationError(
                "ConvertSyncBatchNormCallback lets results depend on the number of processes, which a reproducible run "
                "rules out. Leave out the callback, or reproducible."
            )
        if num_processes() == 1:
            return
        has_accelerator = trainer.device.type != "cpu"
        participants = Participants(shares_group=has_accelerator, is_left_out=lambda: trainer.is_padding_batch)
        model = trainer.get_model(keep_torch_compile=False)
        synchronise_layers(model, participants, uses_torch=has_accelerator)
        self._participants, self._converted = participants, model

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Start counting steps, and prepare for the last step, which may not reach all processes.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._next_step = 0
        loader = _keyed_loader(trainer)
        # A run may resume at the end of an epoch, where no step is left.
        if self._participants is not None and loader is not None and len(loader.split) > 0:
            self._participants.connect_first(_processes_with_samples(trainer, len(loader.split) - 1))

    @override
    def on_train_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Leave out the processes that have no sample in this step.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        if self._participants is not None:
            self._participants.choose_first(_processes_with_samples(trainer, self._next_step))
        self._next_step += 1

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Let all processes take part again.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        if self._participants is not None:
            self._participants.choose_first(num_processes())

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Restore the model's own layers.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._restore()

    @override
    def on_evaluation_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Restore the model's own layers.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._restore()

    @override
    def on_prediction_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Restore the model's own layers.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._restore()

    @override
    def on_exception(self, trainer: AnyTrainer, exception: BaseException, **kwargs: Any) -> None:
        """Restore the model's own layers.

        Args:
            trainer: The trainer.
            exception: The exception.
            **kwargs: Not used.
        """
        self._restore()

    def _restore(self) -> None:
        if self._converted is not None:
            restore_layers(self._converted)
        self._participants = self._converted = None


def _processes_with_samples(trainer: AnyTrainer, step: int) -> int:
    """Return how many processes have samples in a step; they are the first processes, and in most steps all of them."""
    loader = _keyed_loader(trainer)
    count = num_processes()
    # Custom data loaders give each process a batch in each step.
    while loader is not None and count > 1 and len(loader.split.piece(step, count - 1)) == 0:
        count -= 1
    return count


def _keyed_loader(trainer: AnyTrainer) -> KeyedDataLoader[Any] | None:
    """Return the training loader in the trainer's order, without the limits around it; None for a custom loader."""
    loader: object = trainer.train_dataloader
    while isinstance(loader, DataLoaderSlice):
        loader = loader.wrapped
    return loader if isinstance(loader, KeyedDataLoader) else None  # pyright: ignore[reportUnknownVariableType]  # samples of any type
