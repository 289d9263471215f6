"""Files that are either whole or as they were before."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from pa_checkpoint._errors import CheckpointError

__all__ = ["atomic_write", "sync_file", "sync_folder"]


def atomic_write(path: str | Path, writer: Callable[[BinaryIO], object]) -> None:
    """Write a file so that no reader, and no crash, ever meets half of it.

    The content goes to a temporary file in the same folder, reaches the disk, and takes the file's name in
    one step. If anything fails, including a full disk or an interrupt, a file that stood there stays as it was. Missing
    folders are made. A symbolic link stays, and what it points to is replaced.

    Args:
        path: The file.
        writer: Called once with a binary file that is open for writing.

    Raises:
        CheckpointError: Something other than a file is at ``path``, such as a folder.

    Example:
        >>> import tempfile, torch
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = Path(folder.name, "runs", "first", "weights.pt")
        >>> atomic_write(path, lambda file: torch.save({"epoch": 3}, file))
        >>> torch.load(path, weights_only=True), [entry.name for entry in path.parent.iterdir()]
        ({'epoch': 3}, ['weights.pt'])
        >>> folder.cleanup()
    """
    target = _target_in_folder(path)
    # not by tempfile, whose files only their owner may read
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            writer(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def _target_in_folder(path: str | Path) -> Path:
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        raise CheckpointError(
            "There is something else where a file is to be written.",
            given=f"{target}, a {'folder' if target.is_dir() else 'device or pipe'}",
            do="Add a file name to the path, or choose another one.",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def sync_file(path: Path) -> None:
    """Have what is in a file reach the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Have the names in the folder reach the disk, where the system knows such a thing."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems sync no folders
            raise
    finally:
        os.close(descriptor)
