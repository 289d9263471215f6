"""The files of a checkpoint, its JSON documents, and the error for a damaged file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from pa_trial.errors import InvalidCheckpointException

STATE = "state_dict.pth"
"""Models, optimizers, schedulers, callbacks, and the chief's own state."""

TRIAL_STATE = "trial_state.json"
"""The progress of the training, and the calls of ``fit`` that have led to it."""

LOAD_DATA = "load_data.json"
"""The class and the configuration from which the trial is made again."""

METADATA = "metadata.json"
"""The description that Determined stores with a checkpoint."""

OF_RANK = "rank_"
"""The beginning of the names of files with the states of processes other than the chief."""


def name_of_rank(rank: int) -> str:
    """Return the name of the file with the state of a process other than the chief."""
    return f"{OF_RANK}{rank}.pth"


def read_json(path: Path) -> dict[str, Any]:
    """Return the dictionary in a JSON file.

    Raises:
        InvalidCheckpointException: The file is missing, or does not contain a dictionary.
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
    """Return the error for a damaged file."""
    return InvalidCheckpointException(
        "The checkpoint is damaged. Nothing was loaded.",
        given=f"{path}: {found}",
        expected=expected,
        do="Use another checkpoint, such as the checkpoint before it.",
    )
