"""The files of a checkpoint, the documents among them, and what is said of damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from pa_trial.errors import InvalidCheckpointException

STATE = "state_dict.pth"
"""Models, optimizers, schedulers, callbacks, and the chief's own state."""

TRIAL_STATE = "trial_state.json"
"""How far the training had come, and which calls of ``fit`` have led there."""

LOAD_DATA = "load_data.json"
"""What it takes to make the trial again."""

METADATA = "metadata.json"
"""What Determined tells of a checkpoint."""

OF_RANK = "rank_"
"""What the names of the files begin with in which processes other than the chief have their own states."""


def name_of_rank(rank: int) -> str:
    """Return the name of the file with the own state of a process other than the chief."""
    return f"{OF_RANK}{rank}.pth"


def read_json(path: Path) -> dict[str, Any]:
    """Return a document.

    Raises:
        InvalidCheckpointException: It is missing, or is not one.
    """
    try:
        document: object = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise damaged(path, "the file is missing") from None
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from error
    if not isinstance(document, dict):
        raise damaged(path, f"a {type(document).__name__} instead of a dictionary")
    return cast("dict[str, Any]", document)


def damaged(path: Path, found: str, expected: str = "the file as it was written") -> InvalidCheckpointException:
    """Return the error for a file that is not as it was written."""
    return InvalidCheckpointException(
        "The checkpoint is damaged. Nothing was loaded.",
        given=f"{path}: {found}",
        expected=expected,
        do="Use another checkpoint, such as the one before it.",
    )
