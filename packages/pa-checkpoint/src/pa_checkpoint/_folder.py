"""A folder with several checkpoints: find the newest, keep only the newest, and let one run at a time write to it."""

from __future__ import annotations

import itertools
import json
import os
import re
import secrets
import socket
import stat
import time
import warnings
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar, cast

from pa_checkpoint._checkpoint import (
    DOCUMENTS,
    TENSORS,
    Checkpoint,
    check_files,
    is_checkpoint,
    load,
    seal,
)
from pa_checkpoint._encoding import JsonScalar
from pa_checkpoint._errors import CheckpointError, FolderInUseError
from pa_checkpoint._files import (
    discard,
    is_plain_name,
    leftovers,
    local_path,
    located,
    once_there,
    publish,
    replaced,
    shown_path,
    staged,
)
from pa_checkpoint._manifest import MANIFEST, read_manifest
from pa_checkpoint._sharded_tensor import is_piece_file

LOCK, OWNER = ".in_use", ".in_use_by"
"""The names of the locked file, and of the file with the owner of the lock, in the folder."""

_held: set[FolderLock] = set()
"""All held locks: filelock releases a lock without references."""

_ITSELF: int = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Flags that open a file, not the target of a link; a pipe is opened without waiting for a writer."""
_MOST_OF_OWNER = 4096  # bytes

SECONDS_TO_DIE = 3.0
"""How long the system may take to release the lock of a killed process."""


class FolderLock:
    """A lock on a folder, which keeps other processes from saving checkpoints there.

    Use it in a script that a scheduler may start twice: two runs in one folder would delete each other's checkpoints.
    The operating system holds the lock, and releases it when the process ends, even if the process is killed. On a file
    system without locks, a file serves as the lock, and a warning is given; a killed process leaves this file behind,
    so you must delete it.

    The folder is locked as soon as the object is created. Use a ``with`` statement, which releases the lock at the end
    of the block, or call ``release``. In a run of several processes, create the object on rank 0 only. Pass it as
    ``Writer.save(..., lock=lock)``, or call ``check`` before each ``save``. Only processes that create a ``FolderLock``
    respect the lock; reading needs none.

    Args:
        folder: The folder of the checkpoints, which is created if it is missing.
        say: A function that is called with a sentence, for example ``print``, if another process holds the lock. This
            process then waits up to three seconds, since the system may need this time to release the lock of a killed
            process. The default, None, waits without a message.

    Raises:
        FolderInUseError: A live process still uses the folder after the wait.
        CheckpointError: The folder contains a directory named ``.in_use`` or ``.in_use_by``, which are the names of the
            lock's files.
        OSError: The folder or the lock cannot be written.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from pa_checkpoint import FolderLock
        >>> temporary = tempfile.TemporaryDirectory()
        >>> with FolderLock(temporary.name, say=print) as lock:
        ...     lock.check()  # before each save
        ...     sorted(path.name for path in Path(temporary.name).iterdir())
        ['.in_use', '.in_use_by']
        >>> temporary.cleanup()
    """

    def __init__(self, folder: str | Path, say: Callable[[str], None] | None = None) -> None:
        self._folder = local_path(folder)
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
        """Check that the folder is still the locked folder, and that no other process has locked it.

        You call it on rank 0 before each save with ``save``; ``Writer.save(..., lock=lock)`` calls it itself. On
        network file systems a lock can be lost, and a folder can be moved. After ``release`` the call has no effect.

        Raises:
            CheckpointError: The folder was moved, replaced or removed, or a different process has locked it. Stop
                saving there.
            OSError: The file that names the owner of the lock was deleted, and cannot be written again.

        Example:
            >>> import tempfile
            >>> from pathlib import Path
            >>> from pa_checkpoint import CheckpointError, FolderLock
            >>> temporary = tempfile.TemporaryDirectory()
            >>> folder = Path(temporary.name, "checkpoints")
            >>> lock = FolderLock(folder)
            >>> _ = folder.rename(folder.with_name("moved"))
            >>> try:
            ...     lock.check()
            ... except CheckpointError as error:
            ...     print(error.problem)
            The folder of the checkpoints was moved, replaced or removed while the run was using it.
            >>> temporary.cleanup()
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
        if owner is None:  # the file was deleted
            self._write_owner()
        elif owner != self._owner:
            raise CheckpointError(
                "Another run has acquired the folder of the checkpoints.",
                given=f"{self._folder}, used by {owner.get('process')}",
                do="Let one of the two runs continue, and give the other run its own folder.",
            )

    def release(self) -> None:
        """Release the lock, so that other processes can use the folder.

        A ``with`` statement calls it at the end of its block; call it yourself if the lock does not end with a block.
        The files of the lock are removed. A second call has no effect. In a forked process, for example a data loader
        worker, the call has no effect either, since the lock belongs to the process that created it.

        Example:
            >>> import tempfile
            >>> from pathlib import Path
            >>> from pa_checkpoint import FolderLock
            >>> temporary = tempfile.TemporaryDirectory()
            >>> lock = FolderLock(temporary.name)
            >>> lock.release()
            >>> list(Path(temporary.name).iterdir())
            []
            >>> temporary.cleanup()
        """
        if not self._lock.is_locked or os.getpid() != self._process:
            return
        if _identity(self._folder) == self._identity and _owner_of(self._folder) == self._owner:
            (self._folder / OWNER).unlink(missing_ok=True)
            self._path.unlink(missing_ok=True)  # while it is locked: filelock tries again if it has locked such a file
        self._lock.release()
        _held.discard(self)

    def _acquire(self, say: Callable[[str], None] | None) -> None:
        """Lock the folder, after a short wait for a process that was killed."""
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
            do="Wait for the other run to end, end it, or choose another folder for this run.",
        )

    def _write_owner(self) -> None:
        """Write which process has locked the folder."""
        path = self._folder / OWNER
        try:
            path.unlink(missing_ok=True)
            with path.open("x") as file:  # a new file: a link at this path is not followed
                json.dump(self._owner, file)
        except OSError as error:
            raise _something_else(path) from error


def _described(folder: Path) -> str:
    """Return the process that uses a folder, in words."""
    owner = _owner_of(folder)
    return "a process that has not said which" if owner is None else str(owner.get("process"))


def _owner_of(folder: Path) -> dict[str, str] | None:
    """Return the description of the process that uses a folder, or None without a readable file."""
    try:
        descriptor = os.open(folder / OWNER, os.O_RDONLY | _ITSELF)
        with os.fdopen(descriptor, "rb") as file:
            owner: object = json.loads(file.read(_MOST_OF_OWNER))
    except (OSError, ValueError):
        return None
    return cast("dict[str, str]", owner) if isinstance(owner, dict) else None


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return numbers that identify a folder, even after it was moved."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _require_file(path: Path) -> None:
    """Raise an error if a path is something other than a file."""
    try:
        is_file = stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_file:
        raise _something_else(path)


def _something_else(path: Path) -> CheckpointError:
    """Return the error for a path that is not a file."""
    return CheckpointError(
        "There is something else where a run notes down that it uses a folder.",
        given=f"{path}, which is not a regular file",
        do="Remove it, or choose another folder.",
    )


_ReadT = TypeVar("_ReadT")

_NAME = re.compile(r"(?:epoch_\d+|step_(?P<update>\d+)|final)(?:_\d+)?")
_NAME_WITH_SEQUENCE = re.compile(r"state_(?P<sequence>\d+)_update_(?P<update>\d+)")  # of earlier versions


@dataclass(frozen=True, slots=True)
class Skipped:
    """A checkpoint that was skipped in a search for the newest readable checkpoint, and the reason.

    ``Folder.newest_readable`` and ``RemoteFolder.fetch`` return a list of them; you need not make it yourself. Print
    the list when a run resumes from an older checkpoint than its user expects.

    Attributes:
        path: The directory of the checkpoint. ``RemoteFolder.fetch`` gives its name alone, without a folder.
        reason: The problem with the checkpoint, as a text on one line.

    Example:
        >>> import tempfile
        >>> from pa_checkpoint import Folder, load, save
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(f"{folder}/step_480", {"step": 480})
        ...     with open(f"{folder}/step_480/state.json", "w") as file:
        ...         _ = file.write("{}")
        ...     _, (skipped,) = Folder(folder).newest_readable(load)
        >>> skipped.path.name, skipped.reason.partition(".")[0]
        ('step_480', 'The checkpoint is damaged')
    """

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """The description of a checkpoint in a folder, made without reading its tensors.

    ``Folder.records`` and ``CheckpointInfo.at`` return it, and ``Folder.keep`` returns the removed checkpoints; you
    need not make it yourself. Use it to list checkpoints, or to choose one to pass to ``load``. ``run``, ``update``,
    ``epoch`` and ``complete`` come from the ``summary`` that was passed to ``save``.

    Attributes:
        path: The directory of the checkpoint.
        sequence: Its position in the order in which the checkpoints of the folder were saved, from 1; 0 if unknown.
        run: The text that identifies the run that saved it; empty if the summary has no ``"run"``.
        update: The number of optimizer updates before it was saved; 0 if the summary has no ``"update"``.
        epoch: The epoch in which it was saved; 0 if the summary has no ``"epoch"``.
        complete: Whether the run had finished; False if the summary has no ``"complete"``.
        problem: The problem that a check of the manifest (the list of the files) and of the file sizes has found, as a
            text on one line, or None. File contents are not read; ``verify`` compares them.
        digest: The SHA-256 digest of the manifest, in hexadecimal; empty if the manifest is damaged.
        is_sharded: Whether several processes have saved it in pieces.

    Example:
        >>> import tempfile
        >>> from pa_checkpoint import Folder, save
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(f"{folder}/step_480", {"step": 480}, summary={"run": "first", "update": 480})
        ...     (record,) = Folder(folder).records()
        >>> record.path.name, record.run, record.update, record.epoch, record.problem is None
        ('step_480', 'first', 480, 0, True)
    """

    path: Path
    sequence: int
    run: str
    update: int
    epoch: int
    complete: bool
    problem: str | None
    digest: str = ""
    is_sharded: bool = False

    @staticmethod
    def at(path: str | Path) -> CheckpointInfo | None:
        """Return the description of the checkpoint at a path, or None if there is no checkpoint.

        You call it for a single path, for example to test whether a checkpoint is there before ``load``.
        ``Folder.records`` describes all checkpoints of a folder.

        Args:
            path: The directory. If the checkpoint is damaged, ``problem`` describes the damage.

        Returns:
            The description, or None if there is no directory with a manifest at the path.

        Example:
            >>> import tempfile
            >>> from pa_checkpoint import CheckpointInfo, save
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     save(f"{folder}/final", {"step": 480}, summary={"complete": True})
            ...     CheckpointInfo.at(f"{folder}/final").complete, CheckpointInfo.at(f"{folder}/other")
            (True, None)
        """
        return _record(Path(path)) if is_checkpoint(path) else None


class Folder:
    """A folder of checkpoints, with methods that list checkpoints, read the newest and remove old checkpoints.

    Use it to resume from the newest checkpoint, and to limit the disk space that a run uses. Each checkpoint is a
    directory in the folder that ``save`` or a ``Writer`` has written. Checkpoints are ordered by a sequence number in
    their summary, which ``save`` increments, so the newest checkpoint is known even if clocks differ or files were
    copied. For an object store such as S3, use ``RemoteFolder``.

    On several processes, call the methods that remove or write on rank 0 only. The object holds nothing except the
    path, so you may create several objects for the same folder.

    Args:
        path: The folder. It need not exist before the first checkpoint is saved.

    Attributes:
        path: The folder, as a ``pathlib.Path``.

    Example:
        >>> import tempfile
        >>> from pa_checkpoint import Folder, save
        >>> temporary = tempfile.TemporaryDirectory()
        >>> folder = Folder(temporary.name)
        >>> for update in (100, 200, 300):
        ...     save(folder.path / f"step_{update}", {"position": update})
        >>> [record.path.name for record in folder.records()]
        ['step_100', 'step_200', 'step_300']
        >>> removed = folder.keep(newest=1)
        >>> folder.newest()["position"]
        300
        >>> temporary.cleanup()
    """

    def __init__(self, path: str | Path) -> None:
        self.path: Path = Path(path)

    def newest(self) -> Checkpoint | None:
        """Read the newest checkpoint whose files are all intact, or return None if there is none.

        You call it at the start of a script to resume. A ``UserWarning`` names each damaged checkpoint that was
        skipped. To read with your own function or to get the skipped checkpoints as a list, use ``newest_readable``.

        Returns:
            The checkpoint, as ``load`` returns it, or None if the folder is missing, empty, or has only damaged
            checkpoints.

        Raises:
            CheckpointError: The folder cannot be read, or is a file.

        Example:
            >>> import tempfile
            >>> from pa_checkpoint import Folder, save
            >>> temporary = tempfile.TemporaryDirectory()
            >>> folder, step = Folder(temporary.name), 0
            >>> save(folder.path / "step_100", {"step": 100})
            >>> if (checkpoint := folder.newest()) is not None:
            ...     step = checkpoint["step"]
            >>> step
            100
            >>> temporary.cleanup()
        """
        found, skipped = self.newest_readable(load)
        for checkpoint in skipped:
            warnings.warn(f"Skipping the checkpoint {checkpoint.path}: {checkpoint.reason}", stacklevel=2)
        return found

    def keep(
        self,
        newest: int,
        run: str | Callable[[CheckpointInfo], bool] = "",
        needed: Collection[Path] = (),
    ) -> list[CheckpointInfo]:
        """Remove all checkpoints of a run except the newest, and return the removed checkpoints.

        You call it after each save, on rank 0. A checkpoint disappears in a single step, so a reader never finds half
        of it. Damaged checkpoints do not count, and those older than all kept checkpoints are removed as well; as long
        as no checkpoint is valid, nothing is removed. Symbolic links are neither counted nor removed. If a ``Writer``
        of this process is saving a checkpoint to the folder, that checkpoint counts as soon as it is complete; the
        thread that writes it then removes one more old checkpoint. To delete a single checkpoint by its name, use
        ``remove``.

        Args:
            newest: How many valid checkpoints to keep, at least 1.
            run: The run whose checkpoints are removed, as in the ``"run"`` entry of their summaries, or a function that
                returns whether a ``CheckpointInfo`` belongs to it. Checkpoints of other runs stay. The default, an
                empty text, stands for checkpoints without a run.
            needed: Directories of checkpoints that must stay for now, for example because they are being uploaded, in
                the form of ``CheckpointInfo.path``. By default there are none.

        Returns:
            The removed checkpoints, oldest first.

        Raises:
            ValueError: ``newest`` is less than 1.
            CheckpointError: The folder cannot be read, or some checkpoints cannot be removed. All others are removed.

        Example:
            >>> import tempfile
            >>> from pa_checkpoint import Folder, save
            >>> temporary = tempfile.TemporaryDirectory()
            >>> folder = Folder(temporary.name)
            >>> for step in (1, 2, 3):
            ...     save(folder.path / f"step_{step}", {"step": step})
            >>> [record.path.name for record in folder.keep(newest=2)]
            ['step_1']
            >>> temporary.cleanup()
        """
        is_of = run if callable(run) else partial(_is_of, run)
        once_there(self.path, partial(self._keep, newest, is_of, needed))
        return self._keep(newest, is_of, needed)

    def _keep(
        self, newest: int, is_of: Callable[[CheckpointInfo], bool], needed: Collection[Path]
    ) -> list[CheckpointInfo]:
        """Remove old checkpoints, as ``keep`` describes."""
        records = [record for record in self.records() if not record.path.is_symlink()]
        removed = [record for record in states_to_remove(records, newest, is_of) if record.path not in needed]
        self._remove(located(record.path) for record in removed)
        return removed

    def newest_readable(self, read: Callable[[Path], _ReadT]) -> tuple[_ReadT | None, list[Skipped]]:
        """Return the result of a function for the newest checkpoint that it can read, and the skipped checkpoints.

        You call it instead of ``newest`` to read checkpoints in your own way, for example with ``load(path,
        lazy=True)`` or with a check that the model still fits. It gives no warnings about skipped checkpoints.

        Args:
            read: A function that is called with the path of a checkpoint and returns any value, for example ``load``.
                If it raises a ``CheckpointError``, the next older checkpoint is tried. Other errors are raised. If the
                folder is itself a checkpoint, the function is called with the folder.

        Returns:
            A pair: the result, or None if no checkpoint can be read, and the list of the skipped checkpoints, newest
            first.

        Raises:
            CheckpointError: The path is a file, or a folder that cannot be read.

        Example:
            >>> import tempfile
            >>> from pa_checkpoint import Folder, load, save
            >>> temporary = tempfile.TemporaryDirectory()
            >>> folder = Folder(temporary.name)
            >>> for step in (1, 2):
            ...     save(folder.path / f"step_{step}", {"step": step})
            >>> _ = (folder.path / "step_2" / "state.json").write_text("damaged")
            >>> checkpoint, skipped = folder.newest_readable(load)
            >>> checkpoint["step"], [entry.path.name for entry in skipped]
            (1, ['step_2'])
            >>> temporary.cleanup()
        """
        is_checkpoint = _may_be_state(self.path)
        records = [] if is_checkpoint else self.records()
        candidates = [record.path for record in reversed(records)]
        if is_checkpoint or (
            not candidates and any(os.path.lexists(self.path / name) for name in (MANIFEST, DOCUMENTS))
        ):
            candidates = [self.path]  # a checkpoint, or the remains of a checkpoint
        skipped: list[Skipped] = []
        for candidate in candidates:
            try:
                return read(candidate), skipped
            except CheckpointError as error:
                if records and not located(candidate).exists():  # its run, which is alive, has saved newer checkpoints
                    return self.newest_readable(read)
                skipped.append(Skipped(candidate, reason_of(error)))
        return None, skipped

    def records(self) -> list[CheckpointInfo]:
        """List the checkpoints in the folder, oldest first, without reading their tensors.

        You call it to show the checkpoints of a run, or to choose one to pass to ``load``. A checkpoint with a damaged
        manifest (the list of its files) has no known position. It is listed last, since it may be the newest. Other
        files and folders are ignored.

        Returns:
            The checkpoints; an empty list if the folder is missing. ``problem`` names missing files, wrong sizes and
            damaged manifests.

        Raises:
            CheckpointError: The folder cannot be read, or is a file.

        Example:
            >>> import tempfile
            >>> from pa_checkpoint import Folder, save
            >>> temporary = tempfile.TemporaryDirectory()
            >>> folder = Folder(temporary.name)
            >>> save(folder.path / "step_100", {"step": 100}, summary={"update": 100})
            >>> [(record.path.name, record.update, record.problem) for record in folder.records()]
            [('step_100', 100, None)]
            >>> temporary.cleanup()
        """
        if not self.path.exists():
            return []
        try:
            paths = {path for entry in self.path.iterdir() if (path := shown_path(entry)) is not None}
        except OSError as error:
            raise CheckpointError(
                "The folder of checkpoints cannot be read.",
                given=str(error),
                do="Check the path and its permissions.",
            ) from error
        return sorted((_record(path) for path in paths if _may_be_state(path)), key=_age)

    def next_sequence(self) -> int:
        """Return the sequence number of the next checkpoint: one more than the highest in the folder, or 1.

        ``save`` and ``Writer.save`` add it to the summary by themselves. You call it only if you write ``"sequence"``
        into the summary yourself, and only when no save is in progress, since an unfinished checkpoint does not count
        yet.

        Returns:
            The number, at least 1.

        Raises:
            CheckpointError: The folder cannot be read.

        Example:
            >>> import tempfile
            >>> from pa_checkpoint import Folder, save
            >>> temporary = tempfile.TemporaryDirectory()
            >>> folder = Folder(temporary.name)
            >>> save(folder.path / "step_100", {"step": 100})
            >>> folder.next_sequence()
            2
            >>> temporary.cleanup()
        """
        return 1 + max((record.sequence for record in self.records()), default=0)

    def path_for(self, name: str, run: str) -> Path:
        """Return a path at which a checkpoint of a run does not replace anything that belongs to other runs.

        You call it before ``save`` if several runs save to the same folder. Nothing is created.

        Args:
            name: The wanted name, for example ``"epoch_5"``, ``"step_5000"`` or ``"final"``.
            run: The run that saves, as in ``"run"`` of the summaries. A checkpoint of the same run with this name may
                be replaced.

        Returns:
            The path with this name in the folder. If anything else has the name, a number is appended, as in
            ``epoch_5_2``.

        Raises:
            CheckpointError: The name is a path, or begins with a dot.

        Example:
            >>> import tempfile
            >>> from pa_checkpoint import Folder, save
            >>> temporary = tempfile.TemporaryDirectory()
            >>> folder = Folder(temporary.name)
            >>> save(folder.path / "epoch_5", {"step": 480}, summary={"run": "first"})
            >>> folder.path_for("epoch_5", run="first").name, folder.path_for("epoch_5", run="second").name
            ('epoch_5', 'epoch_5_2')
            >>> temporary.cleanup()
        """
        check_name(name)
        names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        paths = (self.path / numbered for numbered in names)
        return next(path for path in paths if not os.path.lexists(located(path)) or self._is_state_of(run, path))

    def remove_leftovers(self, run: str | None = None) -> None:
        """Remove unfinished and half-deleted directories that killed processes left behind.

        You call it on rank 0 at the start of a run, before the first save. These directories are hidden, take disk
        space, and are never read. The call removes neither checkpoints nor files of processes that are still writing.
        If the folder is missing, the call has no effect.

        Args:
            run: The run that saves to the folder, as in the ``"run"`` entry of the summaries. It must have no save in
                progress. Old checkpoints of this run that were replaced and not yet deleted are removed, too. The
                default, None, means that no run saves to the folder at the moment, so the replaced checkpoints of all
                runs are removed.

        Raises:
            CheckpointError: A directory cannot be removed. All others are removed.

        Example:
            >>> import tempfile
            >>> from pa_checkpoint import Folder
            >>> temporary = tempfile.TemporaryDirectory()
            >>> folder = Folder(temporary.name)
            >>> (folder.path / ".removed.000000000000.5f0c").mkdir()  # as a kill leaves it behind
            >>> folder.remove_leftovers(run="first")
            >>> list(folder.path.iterdir())
            []
            >>> temporary.cleanup()
        """
        if self.path.is_dir():
            old = [directory for directory in replaced(self.path) if run is None or _record(directory).run == run]
            self._remove([*old, *leftovers(self.path, run)])

    @contextmanager
    def writing(self, name: str, run: str = "", summary: Mapping[str, JsonScalar] | None = None) -> Generator[Path]:
        """Create a directory with any content in the folder; it appears completely or not at all.

        You use it in a ``with`` statement for an exported model, a tokenizer or plots that belong to a checkpoint. For
        the state of a training run, use ``save``; for a single file, use ``atomic_write``. An error within the block,
        or a kill, leaves no half-written directory under the name.

        Args:
            name: The name of the directory. An existing directory with this name is replaced.
            run: The run that writes, as in ``"run"`` of the summaries. ``remove_leftovers`` removes unfinished
                directories of this run. The default, an empty text, stands for no run.
            summary: Plain values that can be read without the content, for example ``{"update": 480}``. If a summary is
                passed, even an empty dictionary, the files are flushed to the disk and listed with their digests, and
                the directory counts as a checkpoint for ``records``, ``newest_readable``, ``keep`` and ``verify``. It
                may then contain only files, not folders, and ``load`` cannot read it. The default, None, makes a plain
                directory, which these methods ignore.

        Yields:
            A hidden directory to write to. It takes its name when the block ends without an error.

        Raises:
            CheckpointError: The name is a path or begins with a dot, the summary cannot be stored, or a folder was
                written although a summary is passed.
            OSError: The directory cannot be created or renamed.

        Example:
            >>> import tempfile
            >>> from pa_checkpoint import Folder
            >>> temporary = tempfile.TemporaryDirectory()
            >>> folder = Folder(temporary.name)
            >>> with folder.writing("exported") as directory:
            ...     _ = (directory / "vocabulary.txt").write_text("yes no")
            >>> (folder.path / "exported" / "vocabulary.txt").read_text()
            'yes no'
            >>> temporary.cleanup()
        """
        check_name(name)
        target = Path(os.path.realpath(self.path), name)
        with staged(target, run) as directory:
            yield directory
            if summary is not None:
                seal(directory, {"run": run, "sequence": self.next_sequence(), **summary})
            publish(directory, target)

    def remove(self, name: str) -> None:
        """Delete a checkpoint, or any directory in the folder, so that no reader finds half of it.

        You call it to delete a directory by its name; ``keep`` chooses old checkpoints of a run by itself. The
        directory first loses its name in a single step, and then its files are deleted.

        Args:
            name: The name of the directory in the folder, for example ``"step_100"``.

        Raises:
            FileNotFoundError: There is no such directory.
            OSError: The directory cannot be removed.
            CheckpointError: The name is a path, or begins with a dot.

        Example:
            >>> import tempfile
            >>> from pa_checkpoint import Folder, save
            >>> temporary = tempfile.TemporaryDirectory()
            >>> folder = Folder(temporary.name)
            >>> save(folder.path / "step_100", {"step": 100})
            >>> folder.remove("step_100")
            >>> folder.records()
            []
            >>> temporary.cleanup()
        """
        check_name(name)
        discard(located(self.path / name))

    def _is_state_of(self, run: str, path: Path) -> bool:
        """Return whether a path is a checkpoint of a run."""
        return not path.is_symlink() and _record(path).run == run

    def _remove(self, directories: Iterable[Path]) -> None:
        """Remove some directories; raise an error at the end about all that could not be removed."""
        problems: list[OSError] = []
        for directory in directories:
            try:
                discard(directory)
            except FileNotFoundError:
                continue  # another process was faster
            except OSError as error:
                problems.append(error)
        if problems:
            raise CheckpointError(
                "Checkpoints that are no longer needed could not be removed.",
                given=f"in {self.path}: {'; '.join(map(str, problems))}",
                do="Remove them yourself, or change the permissions of the folder.",
            ) from problems[0]


def check_name(name: str) -> None:
    """Raise a ``CheckpointError`` for a name that leads out of a folder of checkpoints, or is hidden in it."""
    if not is_plain_name(name) or name.startswith("."):
        raise CheckpointError(
            "A directory in a folder of checkpoints cannot have this name.",
            given=repr(name),
            expected="a name without a path, which does not begin with a dot",
            do="Use another name, or another object store if this one is not yours.",
        )


def _may_be_state(path: Path) -> bool:
    """Return whether a path is a checkpoint or the remains of a checkpoint, not a folder of a different program."""
    if is_checkpoint(path):
        return True
    folder = located(path)
    is_named = folder.is_dir() and any(pattern.fullmatch(path.name) for pattern in (_NAME, _NAME_WITH_SEQUENCE))
    try:
        if not (folder / DOCUMENTS).exists():  # a folder of a different program may have many files
            return is_named and not any(folder.iterdir())
        return is_named or any(entry.name == MANIFEST or entry.name.endswith(TENSORS) for entry in folder.iterdir())
    except OSError:  # it may not be looked at
        return is_named


def _record(path: Path) -> CheckpointInfo:
    """Return the description of a checkpoint without reading its tensors; a damaged manifest leaves only its name."""
    directory = located(path)
    named = _NAME_WITH_SEQUENCE.fullmatch(path.name) or _NAME.fullmatch(path.name)
    numbers = {} if named is None else named.groupdict()
    sequence, update = (int(numbers.get(name) or 0) for name in ("sequence", "update"))
    try:
        manifest = read_manifest(directory)
    except CheckpointError as error:
        return CheckpointInfo(path, sequence, "", update, 0, complete=False, problem=reason_of(error))
    try:
        check_files(directory, manifest)
        problem = None
    except (CheckpointError, OSError) as error:
        problem = reason_of(error)
    summary = manifest.summary
    return CheckpointInfo(
        path=path,
        sequence=cast("int", summary.get("sequence", 0)),
        run=cast("str", summary.get("run", "")),
        update=cast("int", summary.get("update", 0)),
        epoch=cast("int", summary.get("epoch", 0)),
        complete=cast("bool", summary.get("complete", False)),
        problem=problem,
        digest=manifest.digest,
        is_sharded=any(map(is_piece_file, manifest.files)),
    )


def reason_of(error: Exception) -> str:
    """Return the problem with a checkpoint on one line."""
    if not isinstance(error, CheckpointError):
        return str(error)
    return f"{error.problem} {error.given} instead of {error.expected}"


def _is_of(run: str, record: CheckpointInfo) -> bool:
    """Return whether a checkpoint belongs to a run."""
    return record.run == run


def _age(record: CheckpointInfo) -> tuple[bool, int, int, str]:
    """Return the key that sorts checkpoints from oldest to newest without a clock; a possible newest comes last."""
    is_unknown = not record.run and record.sequence == 0
    return is_unknown, record.sequence, record.update, record.path.name


def states_to_remove(
    records: Iterable[CheckpointInfo], newest: int, is_own: Callable[[CheckpointInfo], bool]
) -> list[CheckpointInfo]:
    """Return the checkpoints of a run that are no longer needed, oldest first.

    The newest valid checkpoints of the run stay, and so do all checkpoints of other runs. Invalid checkpoints do not
    count. Invalid checkpoints of the run that are older than all remaining valid checkpoints are removed as well. As
    long as the run has no valid checkpoint, nothing is removed.

    Args:
        records: The checkpoints of a folder, in any order.
        newest: How many valid checkpoints of the run stay, at least 1.
        is_own: A function that returns whether a checkpoint belongs to the run.

    Raises:
        ValueError: ``newest`` is less than 1.

    Example:
        >>> from pathlib import Path
        >>> records = [CheckpointInfo(Path(f"state_{n}"), n, "first", n * 10, 1, False, None) for n in range(5)]
        >>> [record.sequence for record in states_to_remove(records, 2, lambda record: record.run == "first")]
        [0, 1, 2]
    """
    if newest < 1:
        raise ValueError(f"newest must be a whole number >= 1, got {newest!r}: one checkpoint has to stay.")
    own = sorted(filter(is_own, records), key=_age)
    kept = [record for record in own if record.problem is None][-newest:]
    return [record for record in own if kept and _age(record) < _age(kept[0])]
