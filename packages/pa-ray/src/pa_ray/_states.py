"""Finds the state from which a run on Ray continues: in its folder, or in the checkpoint of Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pa_checkpoint import CheckpointInfo, Folder
from pa_core.distributed import gather_objects
from pa_ray._session import api_of, find_session


def newest_state(save_dir: str | Path) -> Path | None:
    """Return the training state from which a run continues, for ``train(resume_from=...)``.

    You call it in the function that Ray runs, on every process. It compares the newest state in the folder with the
    checkpoint that Ray has of this run. The folder may be newer, because a report that is followed immediately by the
    end of the process may not reach Ray. Ray's checkpoint may be newer, because the folder of a machine that was lost
    may be empty. If the two are states of different runs, Ray's checkpoint is used: for example, population based
    training continues a trial from the state of another trial.

    A checkpoint in an object store is downloaded to a temporary folder. In a script that Ray has not started, only the
    folder counts, so the same script runs with ``torchrun``.

    Args:
        save_dir: The folder that ``SaveTrainingStateCallback`` saves to.

    Returns:
        The folder, or the directory of Ray's checkpoint. None if there is no state, so that a new run begins.

    Raises:
        OSError: Ray's checkpoint cannot be downloaded.

    Example:
        >>> from pa_ray import newest_state
        >>> newest_state("states_of_a_new_run") is None
        True
    """
    folder = Path(save_dir)
    session = find_session()
    checkpoint = None if session is None else api_of(session).get_checkpoint()
    own = next((record for record in reversed(Folder(folder).records()) if record.problem is None), None)
    use_ray = checkpoint is not None and (own is None or _is_newer(checkpoint, own))
    if gather_objects(use_ray)[0]:  # of the first process, because the folder may be on a disk of each machine
        return _directory(checkpoint)
    return None if gather_objects(own is None)[0] else folder


def _is_newer(checkpoint: Any, own: CheckpointInfo) -> bool:
    of_ray = CheckpointInfo.at(_directory(checkpoint))
    return of_ray is None or of_ray.run != own.run or of_ray.update > own.update


def _directory(checkpoint: Any) -> Path:
    """Return the directory of a checkpoint on this machine."""
    is_local = checkpoint.filesystem.type_name == "local"
    return Path(checkpoint.path if is_local else checkpoint.to_directory())
