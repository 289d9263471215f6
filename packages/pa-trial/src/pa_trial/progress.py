"""The counters of the training of a trial, for its checkpoints and its context."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from pa_trial.errors import InternalException


@dataclass
class TrialProgress:
    """The counters of a trial; the training loop sets them, the context reads them, and checkpoints keep some of them.

    Attributes:
        batches_trained: The complete batches of this process since the beginning of the training, also across
            checkpoints.
        initial_batch: ``batches_trained`` when this process began or resumed.
        batch_idx: The index of the batch that is being trained, or was trained last; None before the first.
        epoch_length: The number of batches in an epoch; None before the loaders are built, ``sys.maxsize`` for a loader
            without a length.
        last_checkpoint: ``batches_trained`` at the last checkpoint; a training that begins counts as saved at 0.
        last_validation: ``batches_trained`` at the last validation; None before the first.
        best_metric: The best value so far of the metric for the policy "best"; None before the first validation.
        best_batch: ``batches_trained`` at the validation with that value; None before the first validation.
        seed: Determines the order of the samples and their random draws; None before training.
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
            seed: Determines the order of the samples and their random draws.
        """
        vars(self).update(vars(TrialProgress(seed=seed)))

    def resume(self, saved: TrialProgress) -> None:
        """Continue from the counters of a checkpoint.

        Args:
            saved: The counters. The length of an epoch is not used; a missing seed does not replace the current seed.
        """
        seed = self.seed if saved.seed is None else saved.seed
        batches = saved.batches_trained
        resumed = replace(saved, initial_batch=batches, last_checkpoint=batches, batch_idx=None, epoch_length=None)
        vars(self).update({**vars(resumed), "seed": seed})

    @property
    def epochs_trained(self) -> int:
        """The number of complete epochs."""
        return self.batches_trained // self.batches_per_epoch

    @property
    def batches_per_epoch(self) -> int:
        """The number of batches in an epoch; ``sys.maxsize`` if it is unknown, or before the loaders are built."""
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
        """Return the index of the current epoch, and the index of the current batch in it; see ``current_batch``."""
        return divmod(self.current_batch(asked), self.batches_per_epoch)
