"""Files that are whole or as they were, with digests, and directories that are published by one rename."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

from pa_checkpoint._errors import CheckpointError, damage


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


_CHUNK = 1 << 22  # bytes: a busy training thread gives the GIL back after up to 5 ms, which is paid for each chunk
_WRITE_BACK = 1 << 25  # bytes


class DigestingWriter:
    """Hashes what it writes.

    Args:
        file: Open for writing; None to learn the digest alone.
    """

    def __init__(self, file: BufferedWriter | None) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._written_back = 0
        self.size: int = 0
        """The bytes written so far."""

    @property
    def sha256(self) -> str:
        """The digest of all that was written."""
        return self._hash.hexdigest()

    def write(self, content: bytes | memoryview) -> None:
        """Write and hash piece by piece; other threads run meanwhile."""
        view = memoryview(content)
        for start in range(0, len(view), _CHUNK):
            chunk = view[start : start + _CHUNK]
            self._hash.update(chunk)
            self.size += len(chunk)
            if self._file is not None:
                self._file.write(chunk)
                self._write_back(self._file.fileno())

    def _write_back(self, descriptor: int) -> None:
        """Have the disk write while more is hashed, so that little is left for the end: this call does not wait."""
        size = self.size - self._written_back
        if size >= _WRITE_BACK and sys.platform == "linux":
            os.posix_fadvise(descriptor, self._written_back, size, os.POSIX_FADV_DONTNEED)
            self._written_back = self.size


def sha256_of(path: Path) -> str:
    """Return the digest of a whole file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class DigestingReader:
    """Hashes what it reads.

    Args:
        file: Open for reading.
        verify: Without it nothing is hashed, and ``sha256`` is the digest of nothing.
    """

    def __init__(self, file: BufferedReader, *, verify: bool) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._verify = verify

    @property
    def sha256(self) -> str:
        """The digest of all that was read."""
        return self._hash.hexdigest()

    def read(self, size: int = -1) -> bytes:
        """Read this many bytes, or as many as there are; all that is left without a size."""
        content = self._file.read(size)
        if self._verify:
            self._hash.update(content)
        return content

    def read_into(self, view: memoryview) -> int:
        """Fill a buffer piece by piece; return how many bytes there were."""
        filled = 0
        while filled < len(view):
            chunk = view[filled : filled + _CHUNK]
            count = self._file.readinto(chunk)
            if count == 0:
                break
            if self._verify:
                self._hash.update(chunk[:count])
            filled += count
        return filled


_ATTEMPTS = 5  # to look in both places: while one is looked at, the directory may move to the other
_SET_ASIDE = re.compile(r"\.(.+)\.set_aside")
_HIDDEN = re.compile(r"\.(?P<kind>staging|removed)\.(?P<key>[0-9a-f]{12})\.[0-9a-f]+")


@contextlib.contextmanager
def staged(target: Path, run: str) -> Generator[Path]:
    """Make a folder in which to build what is to be at ``target``; remove it when that fails.

    Args:
        target: An absolute path.
        run: Who writes.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = _hidden(target, run, "staging")
    try:
        folder.mkdir()
        with used(folder):
            yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def publish(folder: Path, target: Path) -> None:
    """Put a finished folder in its place, replacing an older one if there is one.

    At every instant either the new or the old one is at ``located(target)``, even after a power cut.
    """
    aside = _set_aside(target)
    sync_folder(folder)
    try:
        if target.exists():
            if aside.exists():  # a crash came between publishing and cleaning up
                discard(aside)
            target.rename(aside)
        folder.rename(target)
    except BaseException:
        if aside.exists() and not target.exists():
            aside.rename(target)
        raise
    sync_folder(target.parent)
    if aside.exists():
        with contextlib.suppress(OSError):  # the new one is there, and the next write removes this
            discard(aside)


def discard(directory: Path) -> None:
    """Remove a directory so that half of it is never found under its name."""
    removed = _hidden(directory, "", "removed")
    directory.rename(removed)
    shutil.rmtree(removed)


def is_plain_name(name: str) -> bool:
    """Whether it is the name of something in a folder, and leads nowhere else."""
    return name not in ("", os.pardir) and name == Path(name).name and "\0" not in name


class Found(NamedTuple):
    """Where a directory is at this moment, and what tells it from one that replaces it; zeros where none is."""

    path: Path
    inode: int
    changed: int


def find(target: Path) -> Found:
    """Find the directory of that name: the renamed old one, as long as its successor is missing."""
    places = (target, _set_aside(Path(os.path.realpath(target))))  # Path.resolve raises an error for a loop of links
    for place in places * _ATTEMPTS:
        with contextlib.suppress(OSError):
            status = place.stat()
            return Found(place, status.st_ino, status.st_mtime_ns)
    return Found(target, 0, 0)


def located(target: Path) -> Path:
    """Return where the directory of that name is, or would be."""
    return find(target).path


def shown_path(entry: Path) -> Path | None:
    """Return the path by which a directory is known; None for what is hidden."""
    if match := _SET_ASIDE.fullmatch(entry.name):
        target = entry.with_name(match[1])
        return None if target.exists() else target
    return None if entry.name.startswith(".") else entry


def leftovers(folder: Path, run: str | None) -> list[Path]:
    """Return what the run, or any process that is gone, has begun to write, and what any run has begun to delete."""
    key = None if run is None else key_of(run)
    named = [(entry, match) for entry in folder.iterdir() if (match := _HIDDEN.fullmatch(entry.name))]
    return sorted(
        entry
        for entry, match in named
        if _is_own_directory(entry) and (match["kind"] == "removed" or match["key"] == key or _is_abandoned(entry))
    )


def replaced(folder: Path) -> list[Path]:
    """Return old directories that were replaced and not deleted, no matter who wrote them."""
    return [
        entry
        for entry in sorted(folder.iterdir())
        if _SET_ASIDE.fullmatch(entry.name) and shown_path(entry) is None and _is_own_directory(entry)
    ]


def _is_own_directory(entry: Path) -> bool:
    """Whether this is a directory itself, not a link to one that may be anywhere."""
    return entry.is_dir() and not entry.is_symlink()


def _hidden(path: Path, run: str, kind: str) -> Path:
    return path.with_name(f".{kind}.{key_of(run)}.{secrets.token_hex(4)}")


def key_of(run: str) -> str:
    """Return what stands for a run in the names of files, no matter what it is called."""
    return hashlib.sha256(run.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _set_aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.set_aside")


@contextlib.contextmanager
def used(folder: Path) -> Generator[None]:
    """Within the context, the folder counts as being written to, unless this process dies."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.callback(os.close, _locked(folder))
        yield


def _is_abandoned(folder: Path) -> bool:
    """Whether it is certain that no process is writing in a folder, on any machine that sees it."""
    try:
        os.close(_locked(folder))
    except OSError:
        return False
    return True


def _locked(folder: Path) -> int:
    """Return a descriptor of the folder that holds its lock.

    Raises:
        OSError: Another process holds it, or there are no such locks here.
    """
    if sys.platform == "win32":
        raise OSError("folders cannot be locked here")
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


_ResultT = TypeVar("_ResultT")


def with_enough_stack(read: Callable[[], _ResultT], path: Path) -> _ResultT:
    """Return what a function reads: in a thread, which has its own stack, where the caller is too deep in this one.

    So a whole file is never taken for a damaged one because of where it was read.

    Args:
        read: Reads a file, and changes nothing.
        path: The file, for messages.

    Raises:
        CheckpointError: What is in the file is nested more deeply than any stack.
        RecursionError: There is not even room to start a thread.
    """
    try:
        return read()
    except RecursionError:
        result: Future[_ResultT] = Future()
        thread = threading.Thread(target=_fulfil, args=(result, read), name="pa_checkpoint reading")
        thread.start()
        thread.join()
    error = result.exception()
    if isinstance(error, RecursionError):
        raise damage(path, f"what is nested too deeply: reading it raised {type(error).__name__}: {error}") from error
    return result.result()


def _fulfil(result: Future[_ResultT], read: Callable[[], _ResultT]) -> None:
    try:
        result.set_result(read())
    except BaseException as error:  # whatever it is, the thread that waits is told
        result.set_exception(error)


_Job = Callable[[], object]

_lock = threading.Lock()
_in_progress: set[BackgroundSave] = set()


class BackgroundSave:
    """A checkpoint that is being saved, from the moment at which the training continues.

    Args:
        path: Where it will be.
    """

    def __init__(self, path: Path) -> None:
        self.folder: str = os.path.realpath(path.parent)
        self.afterwards: dict[object, _Job] = {}
        with _lock:
            _in_progress.add(self)

    @contextlib.contextmanager
    def ending(self) -> Generator[None]:
        """The context in which it is written, after which it is there, or has failed."""
        try:
            yield
        except BaseException:
            self.forget()
            raise
        for job in self.forget():
            job()

    def forget(self) -> list[_Job]:
        """Have nothing more done once it is there; return what was to be done."""
        with _lock:
            _in_progress.discard(self)
            return [*self.afterwards.values()]


def once_there(folder: Path, job: _Job) -> None:
    """Have something done as soon as the checkpoint is there that is being saved to a folder, if one is.

    What was requested earlier is not done any more: the last call counts.

    Args:
        folder: The folder.
        job: Done in the thread that writes.
    """
    place = os.path.realpath(folder)
    with _lock:
        for save in _in_progress:
            if save.folder == place:
                save.afterwards[place] = job
