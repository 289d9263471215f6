"""One run at a time in a folder: a lock that ends with its process, and a heartbeat where locks do not reach."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from pa_core.errors import CheckpointError, FolderInUseError

__all__ = ["LOCK", "FolderLock"]

LOCK = ".in_use"
"""The name of the file, in the folder."""

SECONDS_TO_DIE = 3.0
"""How long a process that was killed may take until the system gives back its lock."""

SECONDS_BETWEEN_BEATS = 5.0

SECONDS_OF_SILENCE = 30.0
"""Without a heartbeat for so long, a process on another machine counts as gone."""

_SECONDS_BETWEEN_LOOKS = 0.1
SECONDS_UNTIL_ALL_HAVE_WRITTEN = 1.0
_MOST_BYTES = 4096
_HELD_BY_ANOTHER = (errno.EAGAIN, errno.EACCES)
_GONE = (errno.ENOENT, errno.ESTALE)


@dataclass(frozen=True, slots=True)
class _Owner:
    """Who uses a folder: what the lock file says."""

    host: str
    machine: str
    pid: int
    since: str
    token: str


class _Opened(NamedTuple):
    """The lock file, open; and whether the system locks files there, so that no other process of this machine can."""

    descriptor: int
    is_locked: bool


class FolderLock:
    """Keeps other runs out of a folder until it is released, or until the process is gone.

    On one machine the lock of the system decides: it ends with the process, no matter how that ends, and workers that
    outlive it do not hold it. Where such a lock does not reach another machine, a heartbeat decides, the time at which
    the lock file was last changed. It is compared with the clock of the file system and with what is seen while
    waiting, never with the clock of another machine.

    Example:
        >>> temporary = tempfile.TemporaryDirectory()
        >>> lock = FolderLock.acquire(Path(temporary.name))
        >>> [path.name for path in Path(temporary.name).iterdir()]
        ['.in_use']
        >>> lock.check()
        >>> lock.release()
        >>> list(Path(temporary.name).iterdir())
        []
        >>> temporary.cleanup()
    """

    def __init__(self, folder: Path, opened: _Opened, owner: _Owner) -> None:
        self._folder = folder
        self._identity = _identity(folder)
        self._opened = opened
        self._owner = owner
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pa_core folder lock", daemon=True)
        _held.add(self)
        self._thread.start()

    @classmethod
    def acquire(cls, folder: Path, say: Callable[[str], object] | None = None) -> FolderLock:
        """Acquire the folder for this process; a lock whose process is gone is acquired.

        Args:
            folder: An existing folder.
            say: Told why it takes time, where it does.

        Raises:
            FolderInUseError: A live process uses it.
            CheckpointError: Something that is not a lock file has its name.
            OSError: The file cannot be written.
        """
        _close_locks_in_forked_processes()
        opened = _open(folder)
        try:
            before = _read(opened.descriptor)
            if before is not None and not (opened.is_locked and before.machine == _machine()):
                _require_silence(folder, before, say)
            owner = _this_process()
            _write(opened.descriptor, owner)
            if not opened.is_locked:
                _require_to_be_last(folder, owner)
        except BaseException:
            os.close(opened.descriptor)
            raise
        return cls(folder, opened, owner)

    def check(self) -> None:
        """See that the folder is still the one that was taken, and still this process's.

        Raises:
            CheckpointError: It was moved, replaced or removed, or another process has taken it over.
        """
        if self not in _held or _read_file(self._folder) == self._owner:
            return
        if _identity(self._folder) != self._identity:
            raise CheckpointError(
                "The folder of the training states was moved, replaced or removed while the run was using it.",
                given=f"{self._folder}, {_what_is_there(self._folder)}",
                expected="the folder that was there when the run started, with the states that it has saved",
                do="Look for the states where the folder has gone, and leave it in its place while a run uses it.",
            )
        self._take_again()

    def release(self) -> None:
        """Let others use the folder; without effect in a forked process."""
        if self not in _held:
            return
        _held.remove(self)
        self._is_ended.set()
        self._thread.join()
        if _read_file(self._folder) == self._owner:
            with contextlib.suppress(OSError):  # the next run takes it over
                (self._folder / LOCK).unlink()
        os.close(self._opened.descriptor)

    def close_after_fork(self) -> None:
        """In a forked process: leave the lock to the one that has it."""
        with contextlib.suppress(OSError):
            os.close(self._opened.descriptor)

    def _beat(self) -> None:
        while not self._is_ended.wait(SECONDS_BETWEEN_BEATS):
            with contextlib.suppress(OSError):  # the next one may succeed
                if os.utime in os.supports_fd:
                    os.utime(self._opened.descriptor)
                else:
                    os.utime(self._folder / LOCK)

    def _take_again(self) -> None:
        """Write another lock file where somebody has deleted the first one."""
        try:
            opened = _open(self._folder)
        except FolderInUseError as error:
            raise _lost(self._folder, error.given) from None
        after = _read(opened.descriptor)
        if after is not None:
            os.close(opened.descriptor)
            raise _lost(self._folder, f"{self._folder}, used by {_describe(after)}")
        _write(opened.descriptor, self._owner)
        # Under the same number, so that it never means anything else to the thread.
        os.dup2(opened.descriptor, self._opened.descriptor, inheritable=False)
        os.close(opened.descriptor)


_held: set[FolderLock] = set()
"""The locks that this process holds."""

_ONLY_FILES = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Open neither a symbolic link nor, without end, a FIFO."""


def _close_locks_in_forked_processes() -> None:
    """A lock lasts as long as some process has its file open: workers would hold it longer than the run lives."""
    global _closes_after_fork  # noqa: PLW0603  # such a hook is for the whole process, and cannot be taken away
    if not _closes_after_fork and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_close_all)
        _closes_after_fork = True


_closes_after_fork = False


def _close_all() -> None:
    for lock in _held:
        lock.close_after_fork()
    _held.clear()


def _open(folder: Path) -> _Opened:
    """Open and lock the file; wait a little for a process that was killed just now.

    Raises:
        FolderInUseError: A live process holds it.
        CheckpointError: It is something else than a file.
        OSError: It cannot be opened.
    """
    give_up = time.monotonic() + SECONDS_TO_DIE
    while (opened := _open_now(folder)) is None:
        if time.monotonic() > give_up:
            raise _in_use(folder)
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return opened


def _open_now(folder: Path) -> _Opened | None:
    """Open and lock the file; None where another process holds it, or has just removed it."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | _ONLY_FILES, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise _not_a_file(folder) from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _not_a_file(folder)
        is_locked = _lock(descriptor)
        if os.fstat(descriptor).st_nlink > 0:  # else it belongs to a run that has just ended
            return _Opened(descriptor, is_locked)
    except OSError as error:
        if error.errno not in (*_HELD_BY_ANOTHER, *_GONE):
            os.close(descriptor)
            raise
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _lock(descriptor: int) -> bool:
    """Lock the file for this process; return False where the system knows no such locks.

    Raises:
        OSError: Another process holds it.
    """
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD_BY_ANOTHER:
            raise
        return False
    return True


def _require_silence(folder: Path, owner: _Owner, say: Callable[[str], object] | None) -> None:
    """Wait until it is certain that a process on another machine is gone.

    Raises:
        FolderInUseError: There was another heartbeat.
    """
    first = _last_beat(folder)
    if _now(folder) - first > SECONDS_OF_SILENCE:
        return
    if say is not None:
        say(
            f"{folder} was in use by {_describe(owner)}. Waiting up to {SECONDS_OF_SILENCE:g} seconds to see whether "
            "that is still alive."
        )
    give_up = time.monotonic() + SECONDS_OF_SILENCE
    while time.monotonic() < give_up and _now(folder) - first <= SECONDS_OF_SILENCE:
        if _last_beat(folder) != first:
            raise _in_use(folder)
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _require_to_be_last(folder: Path, owner: _Owner) -> None:
    """Where nothing can be locked, the last one to have written its name has the folder."""
    time.sleep(SECONDS_UNTIL_ALL_HAVE_WRITTEN)
    if _read_file(folder) != owner:
        raise _in_use(folder)


def _last_beat(folder: Path) -> float:
    """When the lock file was last changed, by the clock of the file system."""
    descriptor = os.open(folder / LOCK, os.O_RDONLY | _ONLY_FILES)  # a network file system looks anew at what is opened
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)


def _now(folder: Path) -> float:
    """What the clock of the file system says."""
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime


def _read_file(folder: Path) -> _Owner | None:
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY | _ONLY_FILES)
    except OSError:
        return None
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> _Owner | None:
    """Who is named in the file; None where nobody is."""
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        content = cast("dict[str, Any]", json.loads(os.read(descriptor, _MOST_BYTES)))
        host, machine, since, token = (str(content[name]) for name in ("host", "machine", "since", "token"))
        return _Owner(host, machine, int(content["pid"]), since, token)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(descriptor: int, owner: _Owner) -> None:
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.ftruncate(descriptor, 0)
    os.write(descriptor, json.dumps(asdict(owner)).encode())
    os.fsync(descriptor)


def _this_process() -> _Owner:
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    return _Owner(socket.gethostname(), _machine(), os.getpid(), since, secrets.token_hex(8))


def _machine() -> str:
    """What tells this machine from others of the same name, as long as it is not restarted."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        return socket.gethostname()


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _what_is_there(folder: Path) -> str:
    if not folder.exists():
        return "where nothing is"
    return "another folder" if folder.is_dir() else "a file"


def _describe(owner: _Owner) -> str:
    return f"process {owner.pid} on {owner.host} since {owner.since}"


def _in_use(folder: Path) -> FolderInUseError:
    owner = _read_file(folder)
    used_by = "another process" if owner is None else _describe(owner)
    with contextlib.suppress(OSError):
        used_by += f", last heartbeat {max(0, round(_now(folder) - _last_beat(folder)))} seconds ago"
    return FolderInUseError(
        "Another run is using this folder of training states.",
        given=f"{folder}, used by {used_by}",
        expected="a folder into which no other run saves its states",
        do="Wait for the other run to end, end it, or choose another folder for this one.",
    )


def _lost(folder: Path, given: str) -> CheckpointError:
    return CheckpointError(
        "Another run has acquired the folder of the training states.",
        given=given,
        expected=f"the file {LOCK} in {folder} that this run has written there",
        do="Let one of the two runs continue, and give the other one its own folder.",
    )


def _not_a_file(folder: Path) -> CheckpointError:
    return CheckpointError(
        "There is something else where a run notes down that it uses a folder.",
        given=f"{folder / LOCK}, which is not a regular file",
        expected="a file, or nothing",
        do="Remove it, or choose another folder.",
    )
