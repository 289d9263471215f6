"""Finds checkpoints in a folder, and reads their descriptions once they are known to be intact."""

from __future__ import annotations

import os
from pathlib import Path

from pa_checkpoint import CheckpointError, Folder, verify
from pa_trial.checkpoint_files import LOAD_DATA, METADATA, OF_RANK, STATE, TRIAL_STATE, name_of_rank, read_json
from pa_trial.errors import CheckpointNotFound, InvalidCheckpointException
from pa_trial.foreign_checkpoints import is_foreign, read_foreign
from pa_trial.rank_outcomes import from_chief
from pa_trial.saved_trial import SavedTrial, saved_trial
from pa_trial.user_warnings import warn_user


def find_folder(name: str | os.PathLike[str], checkpoint_dir: Path) -> Path:
    """Return the folder of a checkpoint.

    Args:
        name: Its name in ``checkpoint_dir``, or its path.
        checkpoint_dir: The folder that checkpoints are written to.

    Raises:
        CheckpointNotFound: There is no such folder, or it contains no checkpoint files.
    """
    folder = next((path.absolute() for path in (checkpoint_dir / name, Path(name)) if path.is_dir()), None)
    if folder is None:
        raise CheckpointNotFound(
            "There is no such checkpoint.",
            given=str(name),
            expected=f"the name of a checkpoint in {checkpoint_dir}, or the path of a checkpoint",
            do="Look for its name there, or pass latest_checkpoint=None to begin a new training.",
        )
    if any((folder / name).exists() for name in (STATE, TRIAL_STATE, LOAD_DATA, METADATA)):
        return folder
    inside = _newest_first(folder)
    raise CheckpointNotFound(
        "This folder contains checkpoints, but is not a checkpoint." if inside else "This folder is not a checkpoint.",
        given=str(folder),
        expected=f"a folder with {STATE} and {METADATA}",
        do=f"Pass a checkpoint in it, such as {inside[0].name}." if inside else "Pass the folder of a checkpoint.",
    )


def read_saved(folder: Path, rank: int, *, trust_pickle: bool = False, for_weights: bool = False) -> SavedTrial:
    """Return the description of a checkpoint, once the files that a process needs are known to be intact.

    Args:
        folder: The checkpoint.
        rank: The rank of the process.
        trust_pickle: Whether ``trial_state.pkl`` is unpickled, in checkpoints of Determined's.
        for_weights: Whether only the weights are wanted.

    Raises:
        InvalidCheckpointException: The checkpoint is damaged, or the folder is not a checkpoint.
    """
    if is_foreign(folder):
        return read_foreign(folder, trust_pickle=trust_pickle, for_weights=for_weights)
    own = "" if for_weights else name_of_rank(rank)
    try:
        digest = verify(folder, lambda name: name == own or not name.startswith(OF_RANK))
    except CheckpointError as error:
        raise InvalidCheckpointException(*error.args) from error
    return saved_trial(folder, read_json(folder / TRIAL_STATE), digest)


def find_newest(checkpoint_dir: Path) -> str | None:
    """Return the name of the newest checkpoint in a folder that is intact; every process must call this.

    Damaged checkpoints are skipped with a warning. Determined's checkpoints do not count.

    Args:
        checkpoint_dir: The folder.
    """
    return from_chief(lambda: _newest(checkpoint_dir.absolute()), "looking for the newest checkpoint")


def _newest(checkpoint_dir: Path) -> str | None:
    for folder in _newest_first(checkpoint_dir):
        try:
            verify(folder)
            read_json(folder / TRIAL_STATE)  # checkpoints of other programs do not have this file
        except CheckpointError as error:
            warn_user(f"{folder} is skipped: {error.given}.")
        else:
            return folder.name
    return None


def _newest_first(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, which need not exist; any with a damaged manifest may be the newest."""
    known = [record.path for record in reversed(Folder(folder).records())]
    damaged = {path.parent for path in folder.glob(f"[!.]*/{TRIAL_STATE}")}.difference(known)
    return [*damaged, *known]
