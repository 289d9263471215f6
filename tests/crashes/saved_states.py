"""What a run has saved: the training states of pa-core, or the checkpoints of a trial."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pa_checkpoint import Folder
from pa_core import CheckpointError
from pa_trial.checkpoint_folder import read_saved

__all__ = ["TRIAL", "SavedState", "saved_states"]

TRIAL = "trial"
"""The loop of pa-trial, among those of scripts."""


@dataclass(frozen=True)
class SavedState:
    """What a run can continue from.

    Attributes:
        sequence: Higher than those of all states before.
        update: The number of updates that it continues after; of a trial, that of batches.
        complete: Whether nothing would be left to do.
        problem: What is wrong with it; None where nothing is.
    """

    sequence: int
    update: int
    complete: bool
    problem: str | None


def saved_states(folder: Path, loop: str | None, ranks: int = 1) -> list[SavedState]:
    """Return what a run has saved.

    Args:
        folder: Where it saves.
        loop: The name of its loop; None for that of the trainer.
        ranks: The number of its processes.
    """
    if loop == TRIAL:
        return [_of_trial(path, ranks) for path in sorted(folder.glob("[!.]*"))]
    records = Folder(folder).records()
    return [SavedState(one.sequence, one.update, one.complete, one.problem) for one in records]


def _of_trial(path: Path, ranks: int) -> SavedState:
    try:
        saved = [read_saved(path, rank) for rank in range(ranks)]
    except CheckpointError as error:
        return SavedState(0, 0, complete=False, problem=str(error))
    batches = saved[0].progress.batches_trained
    # A signal that comes with the last batch leaves nothing to train, and no time for the last validation.
    return SavedState(batches, batches, complete=False, problem=None)
