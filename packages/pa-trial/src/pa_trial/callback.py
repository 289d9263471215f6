"""Callbacks of a trial."""

from __future__ import annotations

from typing import Any

from pa_trial.types import Metrics


class PyTorchCallback:
    """Reacts to the events of a training; override the methods that you need.

    Return instances from ``PyTorchTrial.build_callbacks``. Each process has its own callbacks, and calls all methods
    except ``on_checkpoint_write_end``, ``on_checkpoint_end`` and ``on_checkpoint_save_start``, which only the chief
    calls. To keep state across restarts, return it from ``state_dict``: the checkpoint has the state of the chief's
    callbacks.

    Example:
        >>> class PrintEpochs(PyTorchCallback):
        ...     def on_training_epoch_start(self, epoch_idx: int) -> None:
        ...         print("epoch", epoch_idx)
        >>> PrintEpochs().on_training_epoch_start(0)
        epoch 0
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save in checkpoints: tensors, numbers, strings and containers of them."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the return value of ``state_dict``; called on all processes when ``fit`` resumes.

        Args:
            state_dict: The state, as the chief's callback returned it.
        """

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        """Called first, before data loaders are built.

        Args:
            first_batch_idx: The index of the first batch to train; above 0 if a checkpoint is resumed.
            checkpoint_uuid: The name of the resumed checkpoint; None if training starts from the beginning.
        """

    def on_trial_shutdown(self) -> None:
        """Called last, even after an exception, in the reverse order of the callbacks; close files here.

        It is not called if ``on_trial_startup`` of this callback has raised an error.
        """

    def on_training_start(self) -> None:
        """Called when everything is restored, before the first batch of this ``fit`` is trained."""

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Called before the first batch of an epoch.

        Args:
            epoch_idx: The index of the epoch, from 0.
        """

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        """Called after the last batch of an epoch.

        Args:
            epoch_idx: The index of the epoch, from 0.
        """

    def on_training_workload_end(self, avg_metrics: Metrics, batch_metrics: list[Metrics]) -> None:
        """Called when the training pauses to validate, save or report, and at its end.

        Args:
            avg_metrics: The means over the batches since the last pause, with "batches" and "epochs".
            batch_metrics: The metrics of each of these batches.
        """

    def on_validation_start(self) -> None:
        """Called before each validation, before ``on_validation_epoch_start``."""

    def on_validation_epoch_start(self) -> None:
        """Called before the first batch of a validation by ``evaluate_batch``."""

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        """Called after the last batch of a validation by ``evaluate_batch``.

        Args:
            outputs: The return values of ``evaluate_batch``, batch by batch.
        """

    def on_validation_end(self, metrics: Metrics) -> None:
        """Called after each validation.

        Args:
            metrics: The metrics of the validation, by name.
        """

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        """Called on the chief before a checkpoint is written; the place to save more than ``state_dict`` returns.

        Args:
            checkpoint: The entries to write. Entries that you add are passed to ``on_checkpoint_load_start``.
        """

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        """Called before anything is restored from a checkpoint; the place to adapt an old checkpoint.

        Args:
            checkpoint: The entries of the checkpoint, by name. The changed dictionary is restored.
        """

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Deprecated: override ``on_checkpoint_write_end``, which is called at the same time.

        Args:
            checkpoint_dir: The folder of the checkpoint.
        """

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        """Called on the chief after a checkpoint is complete, for example to copy it elsewhere.

        Args:
            checkpoint_dir: The path of its folder.
        """

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """Called on all processes after a checkpoint is complete, and after ``on_checkpoint_write_end``.

        Args:
            uuid: The name of the checkpoint, which ``fit(latest_checkpoint=...)`` takes.
        """
