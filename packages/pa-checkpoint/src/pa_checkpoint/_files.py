"""Files with digests that are written completely or not at all, and directories that appear through a single rename."""

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
from typing import BinaryIO, Final, NamedTuple, Protocol, TypeVar

from pa_checkpoint._errors import CheckpointError, damage

_URL: Final = re.compile(r"[A-Za-z][\w+.-]+:/")


def atomic_write(path: str | Path, writer: Callable[[BinaryIO], object]) -> None:
    """Write a file so that readers never see half of it, even after a crash.

    Use it for any file that must survive an interrupt, for example a results file that is replaced after each epoch.
    For a checkpoint with a model and an optimizer, ``save`` is simpler, and for a directory, use ``Folder.writing``.
    The content goes to a temporary file in the same folder, is flushed to the disk, and then takes the name of the file
    in a single step. If anything fails, for example because of a full disk or Ctrl-C, the previous file keeps its
    content. Missing folders are created. If the path is a symbolic link, the file that it points to is replaced.

    Args:
        path: The file, which is replaced if it exists.
        writer: A function that writes the content. It is called once, with a file that is open for writing in binary
            mode, which it need not close. Its return value is ignored. If it raises an error, the error is raised here,
            and the previous file stays.

    Raises:
        CheckpointError: The path is something other than a file, for example a folder.
        OSError: The file cannot be written, for example because the disk is full.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> from pa_checkpoint import atomic_write
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


def local_path(path: str | Path) -> Path:
    """Return the path of a file or folder on the disk.

    Raises:
        CheckpointError: The path is a URL. Otherwise, a folder called ``s3:`` would be created for it.
    """
    local = Path(path)
    if _URL.match(str(path)) and not local.drive:
        raise CheckpointError(
            "This function reads and writes files on the disk, not in an object store.",
            given=str(path).replace(":/", "://", 1) if isinstance(path, Path) else path,
            do="Pass a local path. To send checkpoints to a store, use RemoteFolder, or upload_to of a callback.",
        )
    return local


def _target_in_folder(path: str | Path) -> Path:
    """Return the file behind a path, after creating its folder."""
    target = local_path(path).resolve()
    if target.exists() and not target.is_file():
        raise CheckpointError(
            "There is something else at the path of the new file.",
            given=f"{target}, a {'folder' if target.is_dir() else 'device or pipe'}",
            do="Add a file name to the path, or choose another path.",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def sync_file(path: Path) -> None:
    """Flush the content of a file to the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, on systems that support it."""
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
_BUFFER = 1 << 20  # bytes that are read at a time and not kept, so few that they stay in a processor's cache
_WRITE_BACK = 1 << 24  # bytes
_SHA256_DIGITS = 64


class Hash(Protocol):
    """A hash object of ``hashlib`` or ``xxhash``."""

    def update(self, content: bytes | memoryview, /) -> None:
        """Add some content."""
        ...

    def hexdigest(self) -> str:
        """Return the digest of the content so far, in hexadecimal."""
        ...


def new_hash(like: str = "") -> Hash:
    """Return a hash object for the content of a file.

    It is XXH3 with 128 bits, which detects damage but not attacks, and is as fast as memory.

    Args:
        like: A digest that it will be compared with. Earlier versions of the format have SHA-256 digests.
    """
    if len(like) == _SHA256_DIGITS:
        return hashlib.sha256()
    import xxhash  # here: a program that saves and loads nothing does not import it

    return xxhash.xxh3_128()


class DigestingWriter:
    """Writes to a file and hashes the content.

    Args:
        file: A file that is open for writing, or None to compute the digest only.
    """

    def __init__(self, file: BufferedWriter | None) -> None:
        self._file = file
        self._hash = new_hash()
        self._written_back = 0
        self.size: int = 0
        """The bytes written so far."""

    @property
    def digest(self) -> str:
        """The digest of the written content."""
        return self._hash.hexdigest()

    def write(self, content: bytes | memoryview) -> None:
        """Write and hash some content in chunks, so that other threads can run."""
        view = memoryview(content)
        for start in range(0, len(view), _CHUNK):
            chunk = view[start : start + _CHUNK]
            self._hash.update(chunk)
            self.size += len(chunk)
            if self._file is not None:
                self._file.write(chunk)
                self._write_back(self._file.fileno())

    def _write_back(self, descriptor: int) -> None:
        """Start writing cached content to the disk without waiting, so that little is left at the end."""
        size = self.size - self._written_back
        if size >= _WRITE_BACK and sys.platform == "linux":
            os.posix_fadvise(descriptor, self._written_back, size, os.POSIX_FADV_DONTNEED)
            self._written_back = self.size


def digest_of(path: Path, like: str = "") -> str:
    """Return the digest of a whole file.

    Args:
        path: The file.
        like: A digest that it will be compared with, which determines the kind of hash.
    """
    with path.open("rb") as file:
        reader = DigestingReader(file, new_hash(like))
        reader.skip()
    return reader.digest


class DigestingReader:
    """Reads a file and hashes the content.

    Args:
        file: A file that is open for reading.
        hash_: The hash object, or None to read the content only.
    """

    def __init__(self, file: BufferedReader, hash_: Hash | None = None) -> None:
        self.file: BufferedReader = file
        self._hash = hash_
        self._buffer = memoryview(b"")

    @property
    def digest(self) -> str:
        """The digest of the read content; empty without a hash object."""
        return "" if self._hash is None else self._hash.hexdigest()

    def read(self, size: int = -1) -> bytes:
        """Read this number of bytes, or fewer at the end of the file; without a size, read the rest."""
        content = self.file.read(size)
        if self._hash is not None:
            self._hash.update(content)
        return content

    def read_into(self, view: memoryview) -> int:
        """Fill a buffer in chunks, and return the number of bytes."""
        filled = 0
        while filled < len(view):
            chunk = view[filled : filled + _CHUNK]
            count = self.file.readinto(chunk)
            if count == 0:
                break
            if self._hash is not None:
                self._hash.update(chunk[:count])
            filled += count
        return filled

    def skip(self, size: int | None = None) -> None:
        """Hash this number of bytes, or the rest of the file, and keep nothing; without a hash object, skip them."""
        left = os.fstat(self.file.fileno()).st_size - self.file.tell() if size is None else size
        if self._hash is None:
            self.file.seek(left, os.SEEK_CUR)
            return
        if len(self._buffer) < min(left, _BUFFER):
            self._buffer = memoryview(bytearray(min(left, _BUFFER)))
        while left > 0 and (count := self.read_into(self._buffer[:left])):
            left -= count


_ATTEMPTS = 5  # to look in both places: while one is looked at, the directory may move to the other
_SET_ASIDE = re.compile(r"\.(.+)\.set_aside")
_HIDDEN = re.compile(r"\.(?P<kind>staging|removed)\.(?P<key>[0-9a-f]{12})\.[0-9a-f]+")


@contextlib.contextmanager
def staged(target: Path, run: str) -> Generator[Path]:
    """Create a hidden folder for the content of a directory, and remove it after an error.

    Args:
        target: The absolute path of the directory.
        run: The run that writes.
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
    """Move a finished folder to its place, and replace an older directory there.

    At every instant either the new or the old directory is at ``located(target)``, even after a power cut.
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
    """Remove a directory so that no reader finds half of it under its name."""
    removed = _hidden(directory, "", "removed")
    directory.rename(removed)
    shutil.rmtree(removed)


def is_plain_name(name: str) -> bool:
    """Return whether a name is a plain file name that does not lead out of its folder."""
    return name not in ("", os.pardir) and name == Path(name).name and "\0" not in name


class Found(NamedTuple):
    """The current path of a directory, and numbers that change when it is replaced; zeros if there is none."""

    path: Path
    inode: int
    changed: int


def find(target: Path) -> Found:
    """Return the directory of a name: its own path, or the path of the old directory while its successor is missing."""
    places = (target, _set_aside(Path(os.path.realpath(target))))  # Path.resolve raises an error for a loop of links
    for place in places * _ATTEMPTS:
        with contextlib.suppress(OSError):
            status = place.stat()
            return Found(place, status.st_ino, status.st_mtime_ns)
    return Found(target, 0, 0)


def located(target: Path) -> Path:
    """Return the path where the directory of a name is, or would be."""
    return find(target).path


def shown_path(entry: Path) -> Path | None:
    """Return the path by which users know a directory, or None if it is hidden."""
    if match := _SET_ASIDE.fullmatch(entry.name):
        target = entry.with_name(match[1])
        return None if target.exists() else target
    return None if entry.name.startswith(".") else entry


def leftovers(folder: Path, run: str | None) -> list[Path]:
    """Return unfinished directories of the run and of processes that are gone, and half-deleted directories."""
    key = None if run is None else key_of(run)
    named = [(entry, match) for entry in folder.iterdir() if (match := _HIDDEN.fullmatch(entry.name))]
    return sorted(
        entry
        for entry, match in named
        if _is_own_directory(entry) and (match["kind"] == "removed" or match["key"] == key or _is_abandoned(entry))
    )


def replaced(folder: Path) -> list[Path]:
    """Return old directories that were replaced and not deleted, of any run."""
    return [
        entry
        for entry in sorted(folder.iterdir())
        if _SET_ASIDE.fullmatch(entry.name) and shown_path(entry) is None and _is_own_directory(entry)
    ]


def _is_own_directory(entry: Path) -> bool:
    """Return whether an entry is a directory itself, not a link to a directory elsewhere."""
    return entry.is_dir() and not entry.is_symlink()


def _hidden(path: Path, run: str, kind: str) -> Path:
    """Return a new hidden path next to a path."""
    return path.with_name(f".{kind}.{key_of(run)}.{secrets.token_hex(4)}")


def key_of(run: str) -> str:
    """Return a short text for a run that is safe in file names, no matter which name the run has."""
    return hashlib.sha256(run.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _set_aside(target: Path) -> Path:
    """Return the hidden path of the old directory while it is replaced."""
    return target.with_name(f".{target.name}.set_aside")


@contextlib.contextmanager
def used(folder: Path) -> Generator[None]:
    """Mark a folder as in use within the context, for as long as this process lives."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.callback(os.close, _locked(folder))
        yield


def _is_abandoned(folder: Path) -> bool:
    """Return whether it is certain that no process writes to a folder, on any machine that sees it."""
    try:
        os.close(_locked(folder))
    except OSError:
        return False
    return True


def _locked(folder: Path) -> int:
    """Return a descriptor of a folder that holds its lock.

    Raises:
        OSError: A different process holds the lock, or there are no such locks here.
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
    """Call a function that reads a file, in a new thread if the stack of the caller is too deep.

    So an intact file is never reported as damaged just because the caller's stack is deep.

    Args:
        read: A function that reads a file, and changes nothing.
        path: The file, for messages.

    Raises:
        CheckpointError: The content of the file is nested more deeply than any stack.
        RecursionError: There is not even enough stack left to start a thread.
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
        raise damage(path, f"values nested too deeply: reading them raised {type(error).__name__}: {error}") from error
    return result.result()


def _fulfil(result: Future[_ResultT], read: Callable[[], _ResultT]) -> None:
    """Run a function, and pass its result or its error to the waiting thread."""
    try:
        result.set_result(read())
    except BaseException as error:  # whatever it is, the thread that waits is told
        result.set_exception(error)


_Job = Callable[[], object]

_lock = threading.Lock()
_in_progress: set[BackgroundSave] = set()


class BackgroundSave:
    """A checkpoint that is being saved in the background.

    Args:
        path: The path of the checkpoint.
    """

    def __init__(self, path: Path) -> None:
        self.folder: str = os.path.realpath(path.parent)
        self.afterwards: dict[object, _Job] = {}
        with _lock:
            _in_progress.add(self)

    @contextlib.contextmanager
    def ending(self) -> Generator[None]:
        """Write the checkpoint within the context, and then run the jobs that wait for it."""
        try:
            yield
        except BaseException:
            self.forget()
            raise
        for job in self.forget():
            job()

    def forget(self) -> list[_Job]:
        """Drop the jobs that wait for this checkpoint, and return them."""
        with _lock:
            _in_progress.discard(self)
            return [*self.afterwards.values()]


def once_there(folder: Path, job: _Job) -> None:
    """Run a job as soon as the checkpoint that is being saved to a folder is complete; without such a save, do nothing.

    A second job for the same folder replaces the first.

    Args:
        folder: The folder.
        job: The job, which runs in the thread that writes.
    """
    place = os.path.realpath(folder)
    with _lock:
        for save in _in_progress:
            if save.folder == place:
                save.afterwards[place] = job
