"""Callbacks of a trial."""

from __future__ import annotations

from typing import Any

from pa_trial.types import Metrics


class PyTorchCallback:
    """The base class of callbacks, whose methods ``Trainer.fit`` calls at the events of a training.

    Derive from it, override the methods that you need, and return instances from ``PyTorchTrial.build_callbacks``. All
    methods of this class do nothing. Each process has its own callbacks, and calls all methods except
    ``on_checkpoint_write_end``, ``on_checkpoint_end`` and ``on_checkpoint_save_start``, which only the chief (the
    process of rank 0) calls. An error that a method raises ends the training.

    To keep state across restarts, return it from ``state_dict`` and restore it in ``load_state_dict``. Checkpoints
    contain the state of the chief's callbacks.

    Example:
        >>> import pa_trial
        >>> class PrintEpochs(pa_trial.PyTorchCallback):
        ...     def on_training_epoch_start(self, epoch_idx: int) -> None:
        ...         print("epoch", epoch_idx)
        >>> def build_callbacks(self):  # a method of a trial
        ...     return {"printing": PrintEpochs()}
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the callback, which is saved in checkpoints; by default, an empty dictionary.

        ``fit`` calls it on the chief whenever it saves a checkpoint. Override it together with ``load_state_dict``.

        Returns:
            A dictionary of tensors, numbers, strings and containers of them. With ``fit(trust_pickle=True)``, it may
            contain any picklable object.

        Example:
            >>> import pa_trial
            >>> class CountEpochs(pa_trial.PyTorchCallback):
            ...     num_epochs = 0
            ...     def on_training_epoch_end(self, epoch_idx):
            ...         self.num_epochs += 1
            ...     def state_dict(self):
            ...         return {"num_epochs": self.num_epochs}
            ...     def load_state_dict(self, state_dict):
            ...         self.num_epochs = state_dict["num_epochs"]
        """
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned; by default, do nothing.

        ``fit`` calls it on all processes when it resumes from a checkpoint, before ``on_training_start``. See the
        example in ``state_dict``.

        Args:
            state_dict: The state, as the chief's callback returned it.
        """

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        """Called first in ``fit``, before the data loaders are built and a checkpoint is restored.

        Args:
            first_batch_idx: The index of the first batch to train, counted from 0; it is above 0 if the training
                resumes.
            checkpoint_uuid: The name or path of the checkpoint from which the training resumes, or which was passed as
                ``warm_start``; None if training starts from the beginning.
        """

    def on_trial_shutdown(self) -> None:
        """Called last in ``fit``, even after an exception; close files here.

        The callbacks are called in the reverse order of their dictionary. It is not called if ``on_trial_startup`` of
        this callback, or of a callback before it, has raised an error.
        """

    def on_training_start(self) -> None:
        """Called when everything is restored, before the first batch of this ``fit`` is trained.

        ``fit`` calls it once, even if there is no batch left to train. From here on, ``context.get_initial_batch()`` is
        known.
        """

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Called before the first batch of an epoch; not when a training resumes within an epoch.

        Args:
            epoch_idx: The index of the epoch, counted from 0.
        """

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        """Called after the last batch of an epoch, before any validation or checkpoint that is due at the same time.

        Args:
            epoch_idx: The index of the epoch, counted from 0.
        """

    def on_training_workload_end(self, avg_metrics: Metrics, batch_metrics: list[Metrics]) -> None:
        """Called when the training pauses to validate, save or report, and at its end.

        Args:
            avg_metrics: The means over the batches of all processes since the last pause, by name, the metrics of
                reducers, and the numbers of completed "batches" and "epochs".
            batch_metrics: The metrics of each of these batches, in their order, each the mean over the processes.
        """

    def on_validation_start(self) -> None:
        """Called before each validation, before ``on_validation_epoch_start``.

        The models are in eval mode here.
        """

    def on_validation_epoch_start(self) -> None:
        """Called before the first batch of a validation by ``evaluate_batch``.

        It is not called if the trial overrides ``evaluate_full_dataset`` instead.
        """

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        """Called after the last batch of a validation by ``evaluate_batch``, before metrics are reduced.

        It is not called if the trial overrides ``evaluate_full_dataset`` instead.

        Args:
            outputs: The return values of ``evaluate_batch`` on this process, batch by batch, with NumPy arrays in place
                of tensors.
        """

    def on_validation_end(self, metrics: Metrics) -> None:
        """Called after each validation, for example to stop early if a metric is good enough.

        See the example in ``context.set_stop_requested``.

        Args:
            metrics: The metrics of the validation, by name; the same on all processes.
        """

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        """Called on the chief before a checkpoint is written; override it to save more than ``state_dict`` returns.

        Args:
            checkpoint: The entries to write, by name. Entries that you add are saved, and passed to
                ``on_checkpoint_load_start`` when the checkpoint is restored.
        """

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        """Called on all processes before a checkpoint is restored; override it to adapt an old checkpoint.

        Args:
            checkpoint: The entries of the checkpoint, by name. The dictionary is restored with the changes that you
                make to it.
        """

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Deprecated: override ``on_checkpoint_write_end``, which is called at the same time.

        ``fit`` warns if a callback overrides it.

        Args:
            checkpoint_dir: The path of the checkpoint folder.
        """

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        """Called on the chief after a checkpoint is complete, for example to copy it elsewhere.

        Args:
            checkpoint_dir: The path of the checkpoint folder.
        """

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """Called on all processes after a checkpoint is complete, and after ``on_checkpoint_write_end``.

        Nothing is uploaded; the name of the event comes from Determined.

        Args:
            uuid: The name of the checkpoint, for ``fit(latest_checkpoint=...)``.
        """
