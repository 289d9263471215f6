"""What a run prints when it resumes: from which state, and where."""

from __future__ import annotations

import re
from pathlib import Path

from pa_checkpoint import Folder
from pa_core.errors import CheckpointError
from pa_core.progress import Phase, Position

__all__ = ["describe_missing", "describe_neighbours", "describe_start"]

_SHOWN_STATES = 5
_NAME = re.compile(r"(?:(?:epoch|step)_\d+|final)(?:_\d+)?|state_\d+_update_\d+")  # the last one of earlier versions


def describe_start(path: Path, position: Position, *, has_other_data: bool = False) -> str:
    """Return which state a run resumes from, and where.

    Args:
        path: The state.
        position: What comes next.
        has_other_data: Whether the dataset has a different length than in the saved run.

    Example:
        >>> describe_start(Path("step_500"), Position(Phase.STEP, epochs=2, updates=500))
        'Resuming from step_500: in epoch 3, after update 500.'
    """
    if position.phase is Phase.COMPLETE:
        epochs = position.epochs
        to_train_on_other_data = (
            f" num_epochs includes the epochs before: pass num_epochs={epochs + 1} to train one more on this dataset."
        )
        return (
            f"Resuming from {path}: this run was complete after update {position.updates}, and nothing is left to "
            "train. Raise num_epochs or max_num_train_steps to train for longer."
            f"{to_train_on_other_data if has_other_data else ''}"
        )
    place = {
        Phase.EPOCH: "at the start of epoch",
        Phase.EVALUATION: "in the evaluation of epoch",
    }.get(position.phase, "in epoch")
    return f"Resuming from {path}: {place} {position.epochs + 1}, after update {position.updates}."


def describe_missing(resume_from: str | Path) -> str:
    """Return that there is nothing to resume from and a new run begins.

    Example:
        >>> describe_missing("no folder at all")
        'There is no training state in no folder at all: a new run begins.'
    """
    return f"There is no training state in {resume_from}{describe_neighbours(resume_from)}: a new run begins."


def describe_neighbours(path: str | Path) -> str:
    """Return which states are next to a path that holds none; empty without any.

    Only names that runs give to their states are told: others may belong to anybody, as in a folder of temporary files.
    """
    folder = Path(path).parent
    try:
        records = [record for record in Folder(folder).records() if record.problem is None]
    except CheckpointError:
        return ""
    names = [record.path.name for record in records if _NAME.fullmatch(record.path.name)]
    if not names:
        return ""
    more = f"{len(names) - _SHOWN_STATES} older ones, " if len(names) > _SHOWN_STATES else ""
    return f" ({folder} has {more}{', '.join(names[-_SHOWN_STATES:])})"
