"""Many checkpoints in a folder: newest valid, retention, one run at a time."""

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
"""The names of the file that is locked, and of the one that says by whom, in the folder."""

_held: set[FolderLock] = set()
"""filelock gives up a lock that nobody mentions any more."""

_ITSELF: int = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Opens a file, and not what a link leads to; a pipe without waiting for who writes to it."""
_MOST_OF_OWNER = 4096  # bytes

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

    def __init__(self, folder: str | Path, say: Callable[[str], None] | None = None) -> None:
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

    def _acquire(self, say: Callable[[str], None] | None) -> None:
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
        path = self._folder / OWNER
        try:
            path.unlink(missing_ok=True)
            with path.open("x") as file:  # a new one: no link that somebody puts there leads to another file
                json.dump(self._owner, file)
        except OSError as error:
            raise _something_else(path) from error


def _described(folder: Path) -> str:
    owner = _owner_of(folder)
    return "a process that has not said which" if owner is None else str(owner.get("process"))


def _owner_of(folder: Path) -> dict[str, str] | None:
    """What is known of the process that uses a folder; None without a readable file, which is not a link or a pipe."""
    try:
        descriptor = os.open(folder / OWNER, os.O_RDONLY | _ITSELF)
        with os.fdopen(descriptor, "rb") as file:
            owner: object = json.loads(file.read(_MOST_OF_OWNER))
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
        raise _something_else(path)


def _something_else(path: Path) -> CheckpointError:
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
    """A checkpoint that was skipped, and why.

    Attributes:
        path: Its directory.
        reason: What is wrong with it.

    Example:
        >>> print(Skipped(Path("step_480"), "model.safetensors: 96 bytes instead of 128"))
        Skipped(path=...Path('step_480'), reason='model.safetensors: 96 bytes instead of 128')
    """

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What a folder's listing tells about one checkpoint.

    Attributes:
        path: Its directory.
        sequence: Its place in the order in which the folder's checkpoints were written; 0 where that cannot be known.
        run: The run that wrote it; empty where that cannot be known.
        update: The optimizer updates made before it was written.
        epoch: The epoch in which it was written.
        complete: Whether the run had come to its end.
        problem: What is wrong with it, found by a check of the manifest and of the sizes of the files; None for a
            checkpoint in which that check found nothing.
        digest: As of a ``Checkpoint``; empty where the manifest is damaged.
        is_sharded: Whether several processes have saved it in pieces.

    Example:
        >>> record = CheckpointInfo(Path("states/step_480"), 12, "first", 480, 3, False, None)
        >>> "valid" if record.problem is None else record.problem
        'valid'
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
        """Return what can be known of the checkpoint at a path, whole or damaged; None without any.

        Args:
            path: Its directory.
        """
        return _record(Path(path)) if is_checkpoint(path) else None


class Folder:
    """A folder that holds checkpoints, one directory each.

    Its checkpoints are ordered by their sequence, which counts the checkpoints that were written to the folder, so the
    newest one is known without a clock.

    Args:
        path: The folder; it need not exist before the first checkpoint is written.

    Example:
        >>> import tempfile
        >>> from pa_checkpoint import save
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
        """Read the newest checkpoint that verifies completely; None if there is none. A warning names damaged ones.

        Raises:
            CheckpointError: The folder cannot be read.
        """
        found, skipped = self.newest_readable(load)
        for one in skipped:
            warnings.warn(f"Skipping the checkpoint {one.path}: {one.reason}", stacklevel=2)
        return found

    def keep(
        self,
        newest: int,
        run: str | Callable[[CheckpointInfo], bool] = "",
        needed: Collection[Path] = (),
    ) -> list[CheckpointInfo]:
        """Remove all but the newest valid checkpoints of a run and return what was removed.

        No half-removed checkpoint is ever found. Symbolic links neither count nor are removed, no matter what they
        point to. While there is no valid checkpoint, nothing is removed. If a ``Writer`` of this process is saving one
        to the folder, it counts as soon as it is there: its thread removes what is then too old.

        Args:
            newest: How many valid checkpoints stay, at least 1.
            run: The ``"run"`` in their summaries, or a function that tells whether a checkpoint is of the run;
                checkpoints of other runs stay.
            needed: Checkpoints that are still needed, which stay for now.

        Raises:
            ValueError: ``newest`` is less than 1.
            CheckpointError: Some checkpoints cannot be removed; the others are.
        """
        is_of = run if callable(run) else partial(_is_of, run)
        once_there(self.path, partial(self._keep, newest, is_of, needed))
        return self._keep(newest, is_of, needed)

    def _keep(
        self, newest: int, is_of: Callable[[CheckpointInfo], bool], needed: Collection[Path]
    ) -> list[CheckpointInfo]:
        records = [record for record in self.records() if not record.path.is_symlink()]
        removed = [one for one in states_to_remove(records, newest, is_of) if one.path not in needed]
        self._remove(located(record.path) for record in removed)
        return removed

    def newest_readable(self, read: Callable[[Path], _ReadT]) -> tuple[_ReadT | None, list[Skipped]]:
        """Return what a function makes of the newest checkpoint that it can read, and the newer ones that it cannot.

        Args:
            read: Reads the checkpoint at a path. One for which it raises a ``CheckpointError`` is skipped. Where
                this folder is a checkpoint itself, it is the only one.

        Returns:
            None where it can read none, and those that were skipped, newest first; none where there is nothing at all.

        Raises:
            CheckpointError: There is a file at the path, or a folder that cannot be read.
        """
        is_checkpoint = _may_be_state(self.path)
        records = [] if is_checkpoint else self.records()
        candidates = [record.path for record in reversed(records)]
        if is_checkpoint or (
            not candidates and any(os.path.lexists(self.path / name) for name in (MANIFEST, DOCUMENTS))
        ):
            candidates = [self.path]  # one checkpoint, or what is left of one
        skipped: list[Skipped] = []
        for candidate in candidates:
            try:
                return read(candidate), skipped
            except CheckpointError as error:
                if records and not located(candidate).exists():  # its run, which is alive, has saved newer ones
                    return self.newest_readable(read)
                skipped.append(Skipped(candidate, reason_of(error)))
        return None, skipped

    def records(self) -> list[CheckpointInfo]:
        """List the checkpoints, oldest first, with the problems that manifests and file sizes reveal.

        Where the manifest of a checkpoint is damaged, its place is unknown; it is listed last, as it may be the newest.
        Only checkpoints and the remains of checkpoints are listed.

        Raises:
            CheckpointError: The folder cannot be read.
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
        """Return 1 more than the highest sequence in the folder, or 1.

        A checkpoint that is still being written does not count yet, so call this when the write before has ended.
        """
        return 1 + max((record.sequence for record in self.records()), default=0)

    def path_for(self, name: str, run: str) -> Path:
        """Return where a checkpoint of a run goes, so that it replaces none of another run, and nothing else.

        Args:
            name: What it is to be called, such as ``epoch_5``, ``step_5000`` or ``final``.
            run: The run that writes it, which may have a checkpoint of that name already.

        Returns:
            The path of that name or, where something else is there, of one with a number appended: ``epoch_5_2``.

        Raises:
            CheckpointError: The name leads out of the folder, or is hidden.
        """
        check_name(name)
        names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        paths = (self.path / one for one in names)
        return next(path for path in paths if not os.path.lexists(located(path)) or self._is_state_of(run, path))

    def remove_leftovers(self, run: str | None = None) -> None:
        """Remove what the run, or another one whose process is gone, left half-written, and what is half removed.

        Args:
            run: The run that writes to the folder, of which no write may be in progress; its own old checkpoints
                that were replaced go as well. If None, no run writes to it, and the old checkpoints of all runs are
                removed.

        Raises:
            CheckpointError: Something cannot be removed; the rest is.
        """
        if self.path.is_dir():
            old = [directory for directory in replaced(self.path) if run is None or _record(directory).run == run]
            self._remove([*old, *leftovers(self.path, run)])

    @contextmanager
    def writing(self, name: str, run: str = "", summary: Mapping[str, JsonScalar] | None = None) -> Generator[Path]:
        """Make a directory of any other content, such as an exported model, that is whole or absent as well.

        Args:
            name: What it is to be called; a directory that has the name is replaced.
            run: Who writes it, as for ``remove_leftovers``.
            summary: As for ``save``. With one, even an empty one, the files reach the disk and are listed with their
                digests, and the directory counts as a checkpoint: ``records``, ``newest_readable``, ``keep`` and
                ``verify`` know it.

        Yields:
            A hidden directory to write to, which gets its name when the context is left without an error.
        """
        check_name(name)
        target = Path(os.path.realpath(self.path), name)
        with staged(target, run) as directory:
            yield directory
            if summary is not None:
                seal(directory, {"run": run, "sequence": self.next_sequence(), **summary})
            publish(directory, target)

    def remove(self, name: str) -> None:
        """Remove a directory, of which half is never found.

        Args:
            name: What it is called.

        Raises:
            OSError: It is not there, or cannot be removed.
            CheckpointError: The name leads out of the folder, or is hidden.
        """
        check_name(name)
        discard(located(self.path / name))

    def _is_state_of(self, run: str, path: Path) -> bool:
        return not path.is_symlink() and _record(path).run == run

    def _remove(self, directories: Iterable[Path]) -> None:
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
    """Whether this is a checkpoint, or what is left of one: not a folder of another program that has such a name."""
    if is_checkpoint(path):
        return True
    folder = located(path)
    is_named = folder.is_dir() and any(one.fullmatch(path.name) for one in (_NAME, _NAME_WITH_SEQUENCE))
    try:
        if not (folder / DOCUMENTS).exists():  # of a folder that is somebody else's, the files may be many
            return is_named and not any(folder.iterdir())
        return is_named or any(one.name == MANIFEST or one.name.endswith(TENSORS) for one in folder.iterdir())
    except OSError:  # it may not be looked at
        return is_named


def _record(path: Path) -> CheckpointInfo:
    """What can be known of a checkpoint without reading its tensors; where the manifest is damaged, from its name."""
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
    """Return what is wrong with a checkpoint, in one line."""
    if not isinstance(error, CheckpointError):
        return str(error)
    return f"{error.problem} {error.given} instead of {error.expected}"


def _is_of(run: str, record: CheckpointInfo) -> bool:
    return record.run == run


def _age(record: CheckpointInfo) -> tuple[bool, int, int, str]:
    """The key that sorts checkpoints from oldest to newest, without a clock. One that may be the newest comes last."""
    is_unknown = not record.run and record.sequence == 0
    return is_unknown, record.sequence, record.update, record.path.name


def states_to_remove(
    records: Iterable[CheckpointInfo], newest: int, is_own: Callable[[CheckpointInfo], bool]
) -> list[CheckpointInfo]:
    """Choose the checkpoints of a run that are no longer needed, oldest first.

    The newest valid checkpoints of the run stay, and so do all checkpoints of other runs. Invalid checkpoints do
    not count; invalid ones of the run that are older than all valid ones that stay are removed as well. While the run
    has no valid checkpoint, nothing goes.

    Args:
        records: The checkpoints of one folder, in any order.
        newest: How many valid ones of the run stay, at least 1.
        is_own: Whether a checkpoint is of the run whose checkpoints may be removed.

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
