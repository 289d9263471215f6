"""How far the training of a trial has come: what its checkpoints continue from, and what its context tells."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from pa_trial.errors import InternalException


@dataclass
class TrialProgress:
    """The counters of a trial; the training loop sets them, the context reads them, and checkpoints keep some of them.

    Attributes:
        batches_trained: Batches of this process that are complete, since the beginning of the training, also across
            checkpoints.
        initial_batch: ``batches_trained`` when this process began or resumed.
        batch_idx: The index of the batch that is being trained, or was trained last; None before the first.
        epoch_length: Batches in an epoch; None before the loaders are built, ``sys.maxsize`` for a loader without a
            length.
        last_checkpoint: ``batches_trained`` at the last checkpoint; a training that begins counts as saved at 0.
        last_validation: ``batches_trained`` at the last validation; None before the first.
        best_metric: The best value so far of the metric that is watched for the policy "best"; None without one.
        best_batch: ``batches_trained`` at the validation that gave it; None without one.
        seed: Keys the order of the samples and their random draws; None before training.
    """

    batches_trained: int = 0
    initial_batch: int = 0
    batch_idx: int | None = None
    epoch_length: int | None = None
    last_checkpoint: int = 0
    last_validation: int | None = None
    best_metric: float | None = None
    best_batch: int | None = None
    seed: int | None = None

    def begin(self, seed: int) -> None:
        """Reset all counters for a new training.

        Args:
            seed: Keys the order of the samples and their random draws.
        """
        vars(self).update(vars(TrialProgress(seed=seed)))

    def resume(self, saved: TrialProgress) -> None:
        """Continue from the counters of a checkpoint.

        Args:
            saved: They; the length of an epoch is found again, and a seed that is missing stays as it is.
        """
        seed = self.seed if saved.seed is None else saved.seed
        batches = saved.batches_trained
        resumed = replace(saved, initial_batch=batches, last_checkpoint=batches, batch_idx=None, epoch_length=None)
        vars(self).update({**vars(resumed), "seed": seed})

    @property
    def epochs_trained(self) -> int:
        """Epochs that are complete."""
        return self.batches_trained // self.batches_per_epoch

    @property
    def batches_per_epoch(self) -> int:
        """Batches in an epoch; ``sys.maxsize`` before the loaders are built, too."""
        return self.epoch_length or sys.maxsize

    def current_batch(self, asked: str) -> int:
        """Return the index of the current batch, counted from 0 over the whole training.

        Args:
            asked: The caller, for the message.

        Raises:
            InternalException: Training has not begun.
        """
        if self.batch_idx is None:
            problem = f"There is no current batch before training begins: {asked}."
            raise InternalException(problem, do="Call it from train_batch, or from a callback during training.")
        return self.batch_idx

    def place(self, asked: str) -> tuple[int, int]:
        """Return the index of the current epoch, and the index in it of the current batch; see ``current_batch``."""
        return divmod(self.current_batch(asked), self.batches_per_epoch)
