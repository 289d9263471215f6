"""The files of a checkpoint and their digests: what is not as it was written is found before anything is loaded."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pa_trial.errors import CheckpointNotFound, InvalidCheckpointException

STATE = "state_dict.pth"
"""Models, optimizers, schedulers, callbacks, and the chief's own state."""

TRIAL_STATE = "trial_state.json"
"""How far the training had come."""

LOAD_DATA = "load_data.json"
"""What it takes to make the trial again."""

METADATA = "metadata.json"
"""What tells a checkpoint from others, and the digests of the other files; it is written last."""


def name_of_rank(rank: int) -> str:
    """Return the name of the file with the own state of a process other than the chief."""
    return f"rank_{rank}.pth"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What a file was like when it was written.

    Attributes:
        sha256: Its digest.
        bytes: Its size.
    """

    sha256: str
    bytes: int


def record_of(path: Path) -> FileRecord:
    """Return what a file is like; all of it is read."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileRecord(digest, file.tell())


def require_intact(folder: Path, records: Mapping[str, FileRecord], names: Iterable[str]) -> None:
    """Raise an error for files that are not as they were written.

    Args:
        folder: The checkpoint.
        records: What its files were like.
        names: Those to look at.

    Raises:
        InvalidCheckpointException: One of them is missing, or has changed.
    """
    for name in names:
        path = folder / name
        if name not in records:
            raise damaged(folder / METADATA, f"no digest of {name}")
        if not path.is_file():
            raise damaged(path, "the file is missing")
        if path.stat().st_size != records[name].bytes:
            raise damaged(path, f"{path.stat().st_size} bytes, not {records[name].bytes}")
        if record_of(path) != records[name]:
            raise damaged(path, "its SHA-256 digest differs from the one at writing")


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document, and see that it reaches the disk."""
    content = json.dumps(dict(document), indent=1).encode()
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


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


def digest_of_document(document: Mapping[str, Any]) -> str:
    """Return the digest of a JSON document, independent of the order of its entries."""
    return hashlib.sha256(json.dumps(dict(document), sort_keys=True).encode()).hexdigest()


def find_folder(name: str | os.PathLike[str], checkpoint_dir: Path) -> Path:
    """Return the folder of a checkpoint.

    Args:
        name: Its name in ``checkpoint_dir``, or its path.
        checkpoint_dir: The folder that checkpoints are written to.

    Raises:
        CheckpointNotFound: There is no such folder.
    """
    for path in (checkpoint_dir / name, Path(name)):
        if path.is_dir():
            return _require_files(path.absolute())
    raise CheckpointNotFound(
        "There is no such checkpoint.",
        given=str(name),
        expected=f"the name of a checkpoint in {checkpoint_dir}, or the path of one",
        do="Look for its name there, or pass latest_checkpoint=None to begin a new training.",
    )


def _require_files(folder: Path) -> Path:
    """Raise an error for a folder that has none of the files of a checkpoint."""
    if any((folder / name).exists() for name in (STATE, TRIAL_STATE, LOAD_DATA, METADATA)):
        return folder
    inside = newest_first(folder)
    raise CheckpointNotFound(
        "This folder contains checkpoints, but is not one." if inside else "This folder is not a checkpoint.",
        given=str(folder),
        expected=f"a folder with {STATE} and {METADATA}",
        do=f"Name one of those in it, such as {inside[0].name}." if inside else "Name the folder of a checkpoint.",
    )


def newest_first(checkpoint_dir: Path) -> list[Path]:
    """Return the checkpoints in a folder, those that were written last first; none of them is read.

    Args:
        checkpoint_dir: The folder, which need not exist.
    """
    found: list[tuple[float, Path]] = []
    if checkpoint_dir.is_dir():
        for folder in checkpoint_dir.iterdir():
            with contextlib.suppress(OSError):  # none of ours, or deleted meanwhile
                if not folder.name.startswith(".") and (folder / TRIAL_STATE).is_file():
                    found.append(((folder / METADATA).stat().st_mtime_ns, folder))
    return [folder for _, folder in sorted(found, reverse=True)]


def damaged(path: Path, found: str, expected: str = "the file as it was written") -> InvalidCheckpointException:
    """Return the error for a file that is not as it was written."""
    return InvalidCheckpointException(
        "The checkpoint is damaged. Nothing was loaded.",
        given=f"{path}: {found}",
        expected=expected,
        do="Use another checkpoint, such as the one before it.",
    )
