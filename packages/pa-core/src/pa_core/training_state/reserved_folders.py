"""The folders into which a run saves its states: no other run does, and whether it continues the one that did."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from pa_checkpoint import FolderLock, RemoteFolder, load
from pa_core import distributed
from pa_core.errors import CheckpointError
from pa_core.storage import StateFolder, StateRecord

__all__ = ["ReservedFolders", "continues_run", "newest_state"]


class ReservedFolders:
    """The folders that a run has for itself until it releases them; every process calls each method."""

    def __init__(self) -> None:
        self._locks: dict[Path, FolderLock] = {}
        self.paths: list[Path] = []
        self.stores: list[RemoteFolder] = []

    def reserve(self, folder: Path, say: Callable[[str], object], upload_to: str | None = None) -> None:
        """Make a folder, see that it can be written to, and acquire it for this run.

        Args:
            folder: Its path without symbolic links. A folder that the run has already is not an error.
            say: Told why it takes time, where it does.
            upload_to: The URL of an object store to which its states are sent.

        Raises:
            FolderInUseError: Another run uses it.
            CheckpointError: Its lock cannot be written, or the object store cannot be used.
            OSError: It cannot be made or written to.
        """
        if folder in self.paths:
            return
        if distributed.rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
            self._locks[folder] = FolderLock(folder, say)
            if upload_to is not None:
                store = RemoteFolder(upload_to)
                store.check()
                self.stores.append(store)
        self.paths.append(folder)

    def check(self, folders: Iterable[Path] | None = None) -> None:
        """See that folders are still those that were taken, and still this run's.

        Args:
            folders: Those to look at; others than the reserved ones do not matter. None looks at all.

        Raises:
            CheckpointError: One of them was moved, replaced or removed, or another run has taken it over.
        """
        for folder in self.paths if folders is None else folders:
            if (lock := self._locks.get(folder)) is not None:
                lock.check()

    def release(self) -> None:
        """Let other runs use the folders."""
        for lock in self._locks.values():
            lock.release()
        self._locks.clear()
        self.stores.clear()
        self.paths.clear()


def continues_run(state: Path, run: str, folders: Collection[Path], stores: Iterable[RemoteFolder] = ()) -> bool:
    """Whether a run that resumes from a state continues the one that saved it, rather than branching off from it.

    It does where the state is in one of the folders, and neither these nor the object stores to which their states are
    sent have a valid state of the run that was saved later.

    Args:
        state: The state to resume from.
        run: The name of the run that saved it.
        folders: Where the run that resumes saves its own states.
        stores: Where it sends them.

    Raises:
        CheckpointError: A store cannot be queried.
    """
    places = {_real(state.parent), _real(state).parent}
    found = [(folder, record) for folder in map(_real, folders) for record in _states_of(run, folder)]
    own = next((record for folder, record in found if folder in places and _real(record.path) == _real(state)), None)
    if own is None:
        return False
    if any(_is_later(record, own, folder in places) and _is_valid(record.path) for folder, record in found):
        return False
    return not any(store.has_later(run, own.sequence, own.update) for store in stores)


def newest_state(folder: Path, run: str) -> Path | None:
    """Return the newest state of a run in a folder, be it damaged or not; None without any.

    Args:
        folder: The folder.
        run: The name of the run.
    """
    return next((record.path for record in reversed(_states_of(run, folder))), None)


def _states_of(run: str, folder: Path) -> list[StateRecord]:
    try:
        return [record for record in StateFolder(folder).records() if record.run == run]
    except CheckpointError:  # a folder of others, which may not be listed
        return []


def _is_later(record: StateRecord, own: StateRecord, is_beside: bool) -> bool:
    """Sequences count the states of one folder; two folders have only the updates in common."""
    if _real(record.path) == _real(own.path):
        return False
    return record.update > own.update or (is_beside and record.update == own.update and record.sequence > own.sequence)


def _is_valid(state: Path) -> bool:
    try:
        load(state, lazy=True)
    except CheckpointError:
        return False
    return True


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))
