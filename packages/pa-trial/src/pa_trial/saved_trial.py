"""What a checkpoint tells of itself, read once into records before anything of it is loaded."""

from __future__ import annotations

import platform
import time
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from pa_core.parts import warn_user
from pa_trial.checkpoint_files import (
    METADATA,
    TRIAL_STATE,
    FileRecord,
    damaged,
    digest_of_document,
    newest_first,
    read_json,
    require_intact,
)
from pa_trial.errors import InvalidCheckpointException
from pa_trial.progress import TrialProgress
from pa_trial.rank_outcomes import from_chief

_FORMAT_VERSION = 1
"""Raised when a checkpoint is laid out in a way that earlier releases would misread."""

_DIGEST = "digest"
"""The entry of the metadata with the digest of all others."""


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A call of ``fit`` that the present one continues.

    Attributes:
        fit: Its name.
        batches_trained: After how many batches its checkpoint was taken that was continued from.
    """

    fit: str
    batches_trained: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """What tells a checkpoint from others.

    Attributes:
        fit: The call of ``fit`` that saved it.
        ancestors: The calls that this one continued, the first one first.
        batches_trained: After how many batches it was taken.
        num_processes: The number of processes of the training.
        saved_at: When, in seconds since 1970.
        files: What the other files were like.
    """

    fit: str
    ancestors: tuple[Ancestor, ...]
    batches_trained: int
    num_processes: int
    files: dict[str, FileRecord]
    saved_at: float = field(default_factory=time.time)

    def document(self) -> dict[str, Any]:
        """Return it as it is stored."""
        document: dict[str, Any] = {
            "pa_trial_version": _version(),
            "framework": f"torch-{torch.__version__}",
            "python": platform.python_version(),
            "format": "pickle",  # as Determined has it, of the file that torch.save writes
            "format_version": _FORMAT_VERSION,
            "steps_completed": self.batches_trained,
            "num_processes": self.num_processes,
            "saved_at": self.saved_at,
            "fit": self.fit,
            "ancestors": [asdict(one) for one in self.ancestors],
            "files": {name: asdict(record) for name, record in self.files.items()},
        }
        return {**document, _DIGEST: digest_of_document(document)}


@dataclass(frozen=True, slots=True)
class SavedTrial:
    """A checkpoint that a training can be continued from.

    Attributes:
        uuid: Its name.
        path: Its folder.
        progress: How far the training had come.
        digest: Identifies its content.
        num_processes: The number of processes of the training; None if unknown.
        aggregation_frequency: The frequency of the training; None if unknown.
        metadata: None for a checkpoint of Determined's.
    """

    uuid: str
    path: Path
    progress: TrialProgress
    digest: str
    num_processes: int | None = None
    aggregation_frequency: int | None = None
    metadata: Metadata | None = None


def read_metadata(folder: Path) -> Metadata:
    """Return what a checkpoint tells of itself; of its other files none is read.

    Args:
        folder: The checkpoint.

    Raises:
        InvalidCheckpointException: It is missing, or not as it was written.
    """
    path = folder / METADATA
    document = read_json(path)
    digest = document.pop(_DIGEST, None)
    if digest != digest_of_document(document):
        raise damaged(path, "its digest differs from the one at writing")
    if (number := document.get("format_version")) != _FORMAT_VERSION:
        expected = f"format_version {_FORMAT_VERSION}, the only one that this release of pa-trial reads"
        raise damaged(path, f"format_version {number}", expected)
    try:
        return Metadata(
            fit=document["fit"],
            ancestors=tuple(Ancestor(**one) for one in document["ancestors"]),
            batches_trained=document["steps_completed"],
            num_processes=document["num_processes"],
            files={name: FileRecord(**one) for name, one in document["files"].items()},
            saved_at=document["saved_at"],
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from error


def trial_state_of(progress: TrialProgress, *, aggregation_frequency: int) -> dict[str, Any]:
    """Return how far a training has come, as it is stored.

    Args:
        progress: How far it has come.
        aggregation_frequency: The number of batches of an optimizer step.
    """
    return {
        "trial_id": 0,
        "batches_trained": progress.batches_trained,
        "epochs_trained": progress.epochs_trained,
        "epoch_length": progress.epoch_length,
        "last_ckpt": progress.batches_trained,
        "last_val": progress.last_validation,
        "best_metric": progress.best_metric,
        "best_batch": progress.best_batch,
        "seed": progress.seed,
        "aggregation_frequency": aggregation_frequency,
    }


def read_saved_trial(folder: Path, metadata: Metadata) -> SavedTrial:
    """Return where the training of a checkpoint stood.

    Args:
        folder: The checkpoint, whose files were found intact.
        metadata: What it tells of itself.

    Raises:
        InvalidCheckpointException: An entry is missing, or of another kind.
    """
    path = folder / TRIAL_STATE
    state = read_json(path)
    try:
        batches = state["batches_trained"]
        progress = TrialProgress(
            batches_trained=batches,
            initial_batch=batches,
            epoch_length=state["epoch_length"],
            last_checkpoint=batches,
            last_validation=state["last_val"],
            best_metric=state["best_metric"],
            best_batch=state["best_batch"],
            seed=state["seed"],
        )
    except KeyError as error:
        raise damaged(path, f"{error} is missing") from error
    return SavedTrial(
        uuid=folder.name,
        path=folder,
        progress=progress,
        digest=digest_of_document(metadata.document()["files"]),
        num_processes=metadata.num_processes,
        aggregation_frequency=state.get("aggregation_frequency"),
        metadata=metadata,
    )


def find_newest(checkpoint_dir: Path) -> str | None:
    """Return the name of the newest checkpoint in a folder that is intact; every process must call this.

    Damaged checkpoints are skipped with a warning. Determined's checkpoints do not count.

    Args:
        checkpoint_dir: The folder.
    """
    return from_chief(lambda: _newest(checkpoint_dir.absolute()), "looking for the newest checkpoint")


def _newest(checkpoint_dir: Path) -> str | None:
    for folder in newest_first(checkpoint_dir):
        try:
            metadata = read_metadata(folder)
            require_intact(folder, metadata.files, metadata.files)
        except InvalidCheckpointException as error:
            warn_user(f"{folder} is skipped: {error.given}.")
        else:
            return folder.name
    return None


def _version() -> str:
    try:
        return version("pa-trial")
    except PackageNotFoundError:
        return "unknown"
