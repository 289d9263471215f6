"""Checkpoints that Determined wrote, which are pickled in part."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any, cast

from pa_trial.checkpoint_files import LOAD_DATA, METADATA, STATE, TRIAL_STATE, damaged, read_json
from pa_trial.errors import InvalidCheckpointException
from pa_trial.progress import TrialProgress
from pa_trial.saved_trial import SavedTrial

PICKLED_TRIAL_STATE = "trial_state.pkl"
"""The progress of the training; the metadata have the same, except for the last validation."""


def is_foreign(folder: Path) -> bool:
    """Whether a folder holds a checkpoint that is not pa-trial's.

    Args:
        folder: An existing folder.
    """
    metadata = folder / METADATA
    is_of_trial = (folder / STATE).exists() and not (folder / TRIAL_STATE).exists()
    return is_of_trial and not (metadata.exists() and "pa_trial_version" in read_json(metadata))


def read_foreign(folder: Path, *, trust_pickle: bool = False, for_weights: bool = False) -> SavedTrial:
    """Return the description of a checkpoint of Determined's.

    Args:
        folder: The checkpoint.
        trust_pickle: Whether the file with the last validation is unpickled, which runs any code that it names.
        for_weights: Whether only the weights are wanted, so that the progress of the training may be missing.

    Raises:
        InvalidCheckpointException: It does not contain the progress of the training.
    """
    state = _unpickled(folder / PICKLED_TRIAL_STATE) if trust_pickle else {}
    document = read_json(folder / METADATA) if (folder / METADATA).exists() else {}
    batches: object = 0 if for_weights else state.get("batches_trained", document.get("steps_completed"))
    if type(batches) is not int or batches < 0:
        raise InvalidCheckpointException(
            "The checkpoint does not say how far its training got.",
            given=f"{folder}, whose {METADATA} has no steps_completed",
            do=f"Pass trust_pickle=True to read it from {PICKLED_TRIAL_STATE}, if you trust the author of the file. Or "
            "start over with its weights: warm_start=.",
        )
    last: object = state.get("last_val")
    progress = TrialProgress(batches_trained=batches, last_validation=last if type(last) is int else None)
    names = [name for name in (STATE, LOAD_DATA, METADATA) if (folder / name).is_file()]
    digest = hashlib.sha256(" ".join(_sha256_of(folder / name) for name in names).encode()).hexdigest()
    return SavedTrial(uuid=folder.name, path=folder, progress=progress, digest=digest)


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unpickled(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        state: object = pickle.loads(path.read_bytes())  # the caller trusts the file
    except Exception as error:  # unpickling may raise any error
        raise damaged(path, f"{type(error).__name__}: {error}") from error
    return cast("dict[str, Any]", state) if isinstance(state, dict) else {}
