"""One process at a time in a folder."""

from __future__ import annotations

import json
import os
import secrets
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from pa_checkpoint._errors import CheckpointError, FolderInUseError

__all__ = ["LOCK", "OWNER", "FolderLock"]

LOCK, OWNER = ".in_use", ".in_use_by"
"""The names of the file that is locked, and of the one that says by whom, in the folder."""

_held: set[FolderLock] = set()
"""filelock gives up a lock that nobody mentions any more."""

SECONDS_TO_DIE = 3.0
"""How long a process that was killed may take until the system gives back its lock."""


class FolderLock:
    """Keeps other processes out of a folder until it is released, or until the process is gone.

    The lock is one of the system, which ends with the process, no matter how that ends. On a file system without locks,
    filelock warns and takes a file for the lock, which a killed process leaves behind.

    Args:
        folder: An existing folder.
        say: Told why it takes time, if it does.

    Raises:
        FolderInUseError: A live process uses the folder.
        CheckpointError: Something other than a file has the name of the lock.
        OSError: The lock cannot be written.

    Example:
        >>> import tempfile
        >>> temporary = tempfile.TemporaryDirectory()
        >>> with FolderLock(temporary.name) as lock:
        ...     lock.check()
        ...     sorted(path.name for path in Path(temporary.name).iterdir())
        ['.in_use', '.in_use_by']
        >>> temporary.cleanup()
    """

    def __init__(self, folder: str | Path, say: Callable[[str], object] | None = None) -> None:
        self._folder = Path(folder)
        self._path = self._folder / LOCK
        _require_file(self._path)
        _require_file(self._folder / OWNER)
        from filelock import FileLock

        self._lock = FileLock(self._path, thread_local=False)
        self._process = os.getpid()
        self._acquire(say)
        self._identity = _identity(self._folder)
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        self._owner = {"process": f"process {os.getpid()} on {socket.gethostname()} since {since}"}
        self._owner["token"] = secrets.token_hex(8)
        self._write_owner()
        _held.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def check(self) -> None:
        """See that the folder is still the one that was acquired, and still this process's.

        Raises:
            CheckpointError: It was moved, replaced or removed, or another process has acquired it.
        """
        if not self._lock.is_locked:
            return
        if _identity(self._folder) != self._identity:
            raise CheckpointError(
                "The folder of the checkpoints was moved, replaced or removed while the run was using it.",
                given=f"{self._folder}, {'another folder' if self._folder.is_dir() else 'where no folder is'}",
                do="Look for the checkpoints where the folder has gone, and leave it in its place while a run uses it.",
            )
        owner = _owner_of(self._folder)
        if owner is None:  # somebody has deleted it
            self._write_owner()
        elif owner != self._owner:
            raise CheckpointError(
                "Another run has acquired the folder of the checkpoints.",
                given=f"{self._folder}, used by {owner.get('process')}",
                do="Let one of the two runs continue, and give the other one its own folder.",
            )

    def release(self) -> None:
        """Let others use the folder; without effect in a forked process."""
        if not self._lock.is_locked or os.getpid() != self._process:
            return
        if _identity(self._folder) == self._identity and _owner_of(self._folder) == self._owner:
            (self._folder / OWNER).unlink(missing_ok=True)
            self._path.unlink(missing_ok=True)  # while it is locked: filelock tries again if it has locked such a file
        self._lock.release()
        _held.discard(self)

    def _acquire(self, say: Callable[[str], object] | None) -> None:
        from filelock import Timeout

        for seconds in (0.0, SECONDS_TO_DIE):
            try:
                self._lock.acquire(timeout=seconds)
            except Timeout:
                if say is not None and not seconds:
                    say(f"Waiting for {self._folder}, used by {_described(self._folder)}.")
            else:
                return
        raise FolderInUseError(
            "Another run is using this folder.",
            given=f"{self._folder}, used by {_described(self._folder)}",
            do="Wait for the other run to end, end it, or choose another folder for this one.",
        )

    def _write_owner(self) -> None:
        (self._folder / OWNER).write_text(json.dumps(self._owner))  # a kill in the middle leaves nothing else behind


def _described(folder: Path) -> str:
    owner = _owner_of(folder)
    return "a process that has not said which" if owner is None else str(owner.get("process"))


def _owner_of(folder: Path) -> dict[str, str] | None:
    """What is known of the process that uses a folder; None without a readable file."""
    try:
        owner: object = json.loads((folder / OWNER).read_bytes())
    except (OSError, ValueError):
        return None
    return cast("dict[str, str]", owner) if isinstance(owner, dict) else None


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _require_file(path: Path) -> None:
    try:
        is_file = stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_file:
        raise CheckpointError(
            "There is something else where a run notes down that it uses a folder.",
            given=f"{path}, which is not a regular file",
            do="Remove it, or choose another folder.",
        )
