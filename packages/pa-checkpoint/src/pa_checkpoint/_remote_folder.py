"""Checkpoints in an object store: files are named by their digests, and the manifest is sent last."""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import errno
import os
import posixpath
import re
import secrets
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast
from urllib.parse import quote, unquote

from pa_checkpoint._checkpoint import check_files, require_folder
from pa_checkpoint._errors import (
    CheckpointError,
    CheckpointNotFoundError,
    damage,
    safe_cause,
)
from pa_checkpoint._files import Found, digest_of, find, key_of, located, publish, staged, sync_file
from pa_checkpoint._folder import CheckpointInfo, Folder, Skipped, check_name, reason_of, states_to_remove
from pa_checkpoint._manifest import MANIFEST, MOST_BYTES, FileEntry, Manifest, parse_manifest, read_manifest
from pa_distributed import without_secrets

_ResultT = TypeVar("_ResultT")

PAUSES: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
"""The seconds before each further attempt after a failure."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ObjectStoreError(CheckpointError):
    """An operation on an object store has failed, even after retries.

    Example:
        >>> issubclass(ObjectStoreError, CheckpointError)
        True
    """


_HOPELESS = (PermissionError, ImportError, NotImplementedError, NotADirectoryError)


class _FileSystem(Protocol):
    """The fsspec methods that are used here; fsspec has no types."""

    def invalidate_cache(self) -> None: ...
    def ls(self, path: str, detail: bool) -> list[dict[str, Any]]: ...
    def info(self, path: str) -> dict[str, Any]: ...
    def mkdir(self, path: str, create_parents: bool) -> None: ...
    def put_file(self, lpath: str, rpath: str) -> object: ...
    def get_file(self, rpath: str, lpath: str) -> object: ...
    def cat_file(self, path: str) -> bytes: ...
    def pipe_file(self, path: str, value: bytes) -> object: ...
    def rm_file(self, path: str) -> object: ...


class ObjectStore:
    """A folder in an object store, whose objects have names that are paths within the folder.

    A failed operation is repeated after a pause, unless a retry cannot help. After an object is sent, its size in the
    store is checked; if the object is missing or incomplete, it is sent again.

    Args:
        url: The URL, of any kind that fsspec supports.

    Example:
        >>> store = ObjectStore("memory://bucket/first")
        >>> store.send_bytes(b"some content!", "states/first")
        >>> store.sizes("states"), store.read("states/first", bytes)
        ({'first': 13}, b'some content!')
        >>> store.remove("states/first")
        >>> store.sizes("states")
        {}
    """

    def __init__(self, url: str) -> None:
        self.url: str = url.rstrip("/")
        self._opened: tuple[_FileSystem, str] | None = None

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes of the objects in a folder by name; empty if there is no such folder.

        Raises:
            ObjectStoreError: The store cannot be queried.
        """

        def look(files: _FileSystem, path: str) -> dict[str, int]:
            try:
                entries = files.ls(path, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return {}
            return {
                str(entry["name"]).rstrip("/").rpartition("/")[2]: int(entry["size"] or 0)
                for entry in entries
                if entry.get("type") != "directory"
            }

        return self._persistently(folder, look)

    def size(self, name: str) -> int | None:
        """Return the size of an object, or None if there is no such object.

        Raises:
            ObjectStoreError: The store cannot be queried.
        """
        return self._persistently(name, _size)

    def send(self, file: Path, name: str) -> None:
        """Copy a file to an object.

        Raises:
            ObjectStoreError: The object cannot be sent.
            OSError: The file cannot be read.
        """
        size = file.stat().st_size
        self._send(name, size, lambda files, path: files.put_file(str(file), path))

    def send_bytes(self, content: bytes, name: str) -> None:
        """Write some bytes to an object.

        Raises:
            ObjectStoreError: The object cannot be sent.
        """
        self._send(name, len(content), lambda files, path: files.pipe_file(path, content))

    def read(self, name: str, parse: Callable[[bytes], _ResultT]) -> _ResultT:
        """Return the result of a function for the content of a small object.

        Args:
            name: The name of the object.
            parse: The function. If it raises a ``CheckpointError`` for damaged content, the object is read again.

        Raises:
            FileNotFoundError: There is no such object.
            CheckpointError: ``parse`` has raised it, the object is too large, or the object cannot be read, which is an
                ``ObjectStoreError``.
        """

        def read(files: _FileSystem, path: str) -> _ResultT:
            size = _size(files, path)
            if size is not None and size > MOST_BYTES:
                raise damage(Path(name), f"{size:,} bytes", f"at most {MOST_BYTES:,}")
            return parse(files.cat_file(path))

        return self._persistently(name, read)

    def fetch(self, name: str, file: Path, entry: FileEntry) -> None:
        """Copy an object to a file, exactly as it was sent.

        Args:
            name: The name of the object.
            file: The file.
            entry: The expected size and digest. A larger object is not downloaded.

        Raises:
            OSError: The local disk is full.
            CheckpointError: The object is missing or has different bytes, or it cannot be read, which is an
                ``ObjectStoreError``.
        """

        def fetch(files: _FileSystem, path: str) -> None:
            if (size := _size(files, path)) is not None and size != entry.bytes:
                raise damage(Path(file.name), f"{size:,} bytes at {self.url}/{name}", f"{entry.bytes:,} bytes")
            files.get_file(path, str(file))
            if digest_of(file, entry.digest) != entry.digest:
                raise damage(Path(file.name), f"other bytes at {self.url}/{name}")

        try:
            self._persistently(name, fetch)
        except FileNotFoundError as error:
            raise damage(Path(file.name), f"nothing at {self.url}/{name}") from safe_cause(error, self.url)

    def remove(self, name: str) -> None:
        """Remove an object if it exists.

        Raises:
            ObjectStoreError: The object cannot be removed.
        """

        def remove(files: _FileSystem, path: str) -> None:
            try:
                files.rm_file(path)
            except FileNotFoundError:
                return

        self._persistently(name, remove)

    def _send(self, name: str, size: int, write: Callable[[_FileSystem, str], object]) -> None:
        """Write an object, and compare its size in the store."""

        def send(files: _FileSystem, path: str) -> None:
            try:
                write(files, path)
            except FileNotFoundError:
                _make_folder(files, posixpath.dirname(path))
                write(files, path)
            files.invalidate_cache()
            there = _size(files, path)
            if there != size:
                raise OSError(
                    f"{'nothing' if there is None else f'{there} bytes'} instead of {size} bytes that were sent"
                )

        self._persistently(name, send)

    def _persistently(self, name: str, action: Callable[[_FileSystem, str], _ResultT]) -> _ResultT:
        """Call a function, and repeat it after failures.

        Raises:
            FileNotFoundError: The function has raised it.
            OSError: The local disk is full.
            CheckpointError: All attempts have failed, or a retry cannot help. It is an ``ObjectStoreError`` unless an
                object is damaged.
        """
        files, root = self._open()
        for pause in (*PAUSES, None):
            try:
                files.invalidate_cache()
                return action(files, f"{root}/{name}")
            except FileNotFoundError:
                raise
            except Exception as error:  # what the libraries of the stores raise has no common base
                if isinstance(error, OSError) and error.errno in _FULL:
                    raise
                if pause is None or isinstance(error, _HOPELESS):
                    if isinstance(error, CheckpointError):
                        raise
                    raise self._explained(name, error) from safe_cause(error, self.url)
                if not isinstance(error, CheckpointError):  # a damaged download may succeed at once
                    time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _open(self) -> tuple[_FileSystem, str]:
        """Return the file system of fsspec, and the path of the folder in it."""
        if self._opened is None:
            try:
                from fsspec.core import url_to_fs  # pyright: ignore[reportUnknownVariableType]  # it has no types

                files, root = cast("tuple[_FileSystem, str]", url_to_fs(self.url))
            except Exception as error:  # as below
                raise self._explained("", error) from safe_cause(error, self.url)
            self._opened = files, root.rstrip("/")
        return self._opened

    def _explained(self, name: str, error: Exception) -> ObjectStoreError:
        """Return the error for a failed operation."""
        reason = without_secrets(f"{type(error).__name__}: {error}", self.url)
        return ObjectStoreError(
            "An operation on the object store failed.",
            given=f"{self.url}/{name}: {reason}",
            expected="the URL of a bucket in which this process may list, read, write and remove objects",
            do="Check the URL, the credentials and the connection. Install pa-checkpoint[fsspec], and s3fs for s3://.",
        )


def _size(files: _FileSystem, path: str) -> int | None:
    """Return the size of an object, or None if there is no such object."""
    try:
        return int(files.info(path)["size"] or 0)
    except FileNotFoundError:
        return None


def _make_folder(files: _FileSystem, folder: str) -> None:
    """Create a folder and its parents in stores that need them; never create a bucket."""
    try:
        files.mkdir(folder, create_parents=False)
    except FileExistsError:
        return
    except FileNotFoundError:
        parent = posixpath.dirname(folder)
        if not parent.strip("/") or "/" not in parent:
            raise NotADirectoryError("there is no such bucket") from None
        _make_folder(files, parent)
        files.mkdir(folder, create_parents=False)


_STATES, _FILES, _WRITERS = "states", "files", "writers"
_STATE = re.compile(r"(?P<sequence>\d+)_(?P<update>\d+)_(?P<key>[0-9a-f]{12})_(?P<name>.+)\.json")
_WRITER = re.compile(r"(\d+)_[0-9a-f]+")

SECONDS_TO_SETTLE = 60.0
"""How long an unneeded file stays: a listing may not yet show the checkpoint that needs it."""


@dataclass(frozen=True, slots=True)
class RemoteCheckpoint:
    """A checkpoint in an object store, as its name describes it.

    ``RemoteFolder.states``, ``upload`` and ``keep`` return it, and ``digest`` and ``download`` take it; you need not
    make it yourself.

    Attributes:
        object_name: The name of its manifest, the list of its files, in the store.
        sequence: Its position in the order in which the checkpoints of the folder were saved, from 1; 0 if unknown.
        update: The number of optimizer updates before it was saved; 0 if the summary has no ``"update"``.
        key: A hash of the run that saved it.
        name: The name of its directory on disk, for example ``"step_480"``.

    Example:
        >>> RemoteCheckpoint("000000012_480_5f0c5f0c5f0c_step_480.json", 12, 480, "5f0c5f0c5f0c", "step_480").age
        (12, 480)
    """

    object_name: str
    sequence: int
    update: int
    key: str
    name: str

    @property
    def age(self) -> tuple[int, int]:
        """The key that sorts checkpoints from oldest to newest, without a clock."""
        return self.sequence, self.update

    def is_of(self, run: str) -> bool:
        """Return whether a run has written this checkpoint."""
        return self.key == key_of(run)


class RemoteFolder:
    """A folder of checkpoints in an object store such as S3, with methods to upload, list, remove and fetch them.

    Use it to keep checkpoints on machines whose disks disappear, for example spot instances. A checkpoint is first
    saved to disk with ``save`` or a ``Writer``, then sent with ``upload``. On a new machine, ``fetch`` downloads the
    newest. For a folder on a local or shared disk, use ``Folder``.

    Files that are already in the store, for example a frozen model, are not sent again. The manifest, which is the list
    of the files, is sent last, so a killed upload leaves nothing that looks like a checkpoint. A failed operation is
    repeated up to four times, after pauses of 0.5 to 4 seconds, unless a retry cannot help. In a run of several
    processes, use the object on rank 0 only. All calls wait for the store; to send in the background, call ``upload``
    in ``on_saved`` of ``Writer.save``.

    fsspec must support the URL, so install ``pa-checkpoint[fsspec]`` and the library of the store, for example
    ``s3fs``. The credentials are those that this library finds.

    Args:
        url: The folder, for example ``"s3://bucket/run-7"``. Any URL that fsspec supports is allowed. The bucket must
            exist. The constructor does not connect; ``check`` does.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from pa_checkpoint import RemoteFolder, load, save
        >>> folder = tempfile.TemporaryDirectory()
        >>> store = RemoteFolder("memory://bucket/states")
        >>> for update in (100, 200, 300):
        ...     path = Path(folder.name, f"step_{update}")
        ...     save(path, {"position": update}, summary={"run": "first", "update": update})
        ...     uploaded = store.upload(path)
        >>> removed = store.keep(newest=2, run="first")
        >>> [state.name for state in store.states()]
        ['step_200', 'step_300']
        >>> path, skipped = store.fetch(Path(folder.name, "elsewhere"))
        >>> path.name, load(path)["position"]
        ('step_300', 300)
        >>> folder.cleanup()
    """

    def __init__(self, url: str) -> None:
        self._store = ObjectStore(url)
        self._writers: dict[str, str] = {}
        self._manifests: dict[str, Manifest] = {}
        self._unneeded: dict[str, float] = {}

    @property
    def url(self) -> str:
        """The URL of the folder, a string as it was passed to the constructor, without a slash at the end.

        The URL may contain a password, so do not print it. ``explained`` makes messages without passwords. Example:
        ``"s3://bucket/run-7"``.
        """
        return self._store.url

    def explained(self, problem: str, place: object, error: Exception) -> CheckpointError:
        """Return an error that says which operation has failed, without the passwords in the URL.

        You call it in an ``except`` block around your own operations on the store, for example in a background thread
        that logs its errors. The methods of this class raise explained errors by themselves.

        Args:
            problem: A sentence that names the failure.
            place: The checkpoint or file that the operation was about. Its ``str`` is shown.
            error: The error that you have caught. It becomes the cause of the new error, unless its traceback could
                show a password.

        Returns:
            The new error, which you raise or print. It is not raised here.

        Example:
            >>> from pa_checkpoint import RemoteFolder
            >>> store = RemoteFolder("memory://me:secret@bucket/states")
            >>> store.explained("A checkpoint was not sent.", "step_100", OSError("secret is wrong")).given
            'step_100: OSError: *** is wrong'
        """
        reason = without_secrets(f"{type(error).__name__}: {error}", self.url)
        do = "See whether the checkpoint is still there."
        if isinstance(error, CheckpointError):
            reason, do = f"{error.problem} {error.given}", error.do
        explained = CheckpointError(problem, given=f"{place}: {reason}", do=do)
        explained.__cause__ = safe_cause(error, self.url)
        return explained

    # Listing

    def states(self) -> list[RemoteCheckpoint]:
        """List the checkpoints in the store, of all runs, oldest first.

        You call it to show the checkpoints, or to choose one to pass to ``download`` or ``digest``. Only the names in
        the store are read, so a listed checkpoint may lack files; ``fetch`` skips such checkpoints.

        Returns:
            The checkpoints; an empty list if the store has none. Each has ``name``, the name of its directory on disk,
            ``sequence``, its position in the order in which the checkpoints were saved, and ``update``, the number of
            optimizer updates before it was saved.

        Raises:
            CheckpointError: The store cannot be queried, even after retries.

        Example:
            >>> import tempfile
            >>> from pa_checkpoint import RemoteFolder, save
            >>> store = RemoteFolder("memory://bucket/listed")
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     save(f"{folder}/step_200", {"step": 200}, summary={"run": "first", "update": 200})
            ...     uploaded = store.upload(f"{folder}/step_200")
            >>> [(state.name, state.sequence, state.update) for state in store.states()]
            [('step_200', 1, 200)]
        """
        found = (_state(name) for name in self._store.sizes(_STATES))
        return sorted((state for state in found if state is not None), key=lambda state: (state.age, state.name))

    def has_run(self, run: str) -> bool:
        """Return whether the store knows a run, because the run was registered or has begun to send checkpoints.

        You call it when a run starts, to tell a new run from a run that resumes on a new machine.

        Args:
            run: The text that identifies the run, as in ``"run"`` of the summaries.

        Returns:
            True if the store knows the run. It may not have a complete checkpoint of the run yet.

        Raises:
            CheckpointError: The store cannot be queried, even after retries.

        Example:
            >>> from pa_checkpoint import RemoteFolder
            >>> store = RemoteFolder("memory://bucket/known-runs")
            >>> store.register("first")
            >>> store.has_run("first"), store.has_run("second")
            (True, False)
        """
        return bool(self._store.sizes(f"{_WRITERS}/{key_of(run)}"))

    def has_later(self, run: str, sequence: int, update: int) -> bool:
        """Return whether the store has a later checkpoint of a run than the given position.

        You call it before ``upload`` to skip a checkpoint that is already superseded. Checkpoints in the store with
        missing files do not count.

        Args:
            run: The text that identifies the run, as in ``"run"`` of the summaries.
            sequence: The position of the known checkpoint in the order of its folder, as in
                ``CheckpointInfo.sequence``.
            update: The number of optimizer updates of the known checkpoint, which are compared if the positions are
                equal.

        Returns:
            True if there is a later checkpoint.

        Raises:
            CheckpointError: The store cannot be queried, even after retries.

        Example:
            >>> import tempfile
            >>> from pa_checkpoint import RemoteFolder, save
            >>> store = RemoteFolder("memory://bucket/later")
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     save(f"{folder}/step_200", {"step": 200}, summary={"run": "first", "sequence": 2, "update": 200})
            ...     uploaded = store.upload(f"{folder}/step_200")
            >>> store.has_later("first", sequence=1, update=100), store.has_later("first", sequence=2, update=200)
            (True, False)
        """
        key = key_of(run)
        later = [state for state in self.states() if state.key == key and state.age > (sequence, update)]
        sizes = self._store.sizes(f"{_FILES}/{key}") if later else {}
        records = (self._record(state, run, sizes) for state in later)
        return any(record is not None and record.problem is None for record in records)

    def next_sequence(self) -> int:
        """Return one more than the highest sequence number in the store, or 1.

        You call it in a run that begins with an empty disk, and pass the number as ``"sequence"`` of the summary to
        ``save``, so that its checkpoints come after the checkpoints in the store. A run that has called ``fetch`` has
        the newest checkpoint on its disk, so it does not need this method.

        Returns:
            The number, at least 1.

        Raises:
            CheckpointError: The store cannot be queried, even after retries.

        Example:
            >>> from pa_checkpoint import RemoteFolder
            >>> RemoteFolder("memory://bucket/an-empty-folder").next_sequence()
            1
        """
        return 1 + max((state.sequence for state in self.states()), default=0)

    def digest(self, state: RemoteCheckpoint) -> str:
        """Return the digest of a checkpoint in the store, which is the ``digest`` of the loaded ``Checkpoint``.

        You call it to find out whether a checkpoint on disk and a checkpoint in the store have the same content,
        without downloading the files. Only the manifest, which is the list of the files with their digests, is read.

        Args:
            state: A checkpoint that ``states`` has listed or ``upload`` has returned.

        Returns:
            The SHA-256 digest of the manifest, in hexadecimal. ``verify`` returns it for a checkpoint on disk.

        Raises:
            CheckpointNotFoundError: The checkpoint was removed from the store.
            CheckpointError: The manifest is damaged, or the store cannot be queried.

        Example:
            >>> import tempfile
            >>> from pa_checkpoint import RemoteFolder, save, verify
            >>> store = RemoteFolder("memory://bucket/digests")
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     save(f"{folder}/step_200", {"step": 200}, summary={"run": "first"})
            ...     store.digest(store.upload(f"{folder}/step_200")) == verify(f"{folder}/step_200")
            True
        """
        return self._read(state).digest

    # Sending

    def check(self) -> None:
        """Check that objects can be written, read, listed and removed in the store.

        You call it when a script starts, so that missing permissions cause an error then and not at the first upload.
        The call writes a small object and removes it again.

        Raises:
            CheckpointError: An operation has failed, even after retries. The message names the cause, for example a
                missing bucket, wrong credentials or a library that is not installed.

        Example:
            >>> from pa_checkpoint import RemoteFolder
            >>> RemoteFolder("memory://bucket/states").check()
        """
        name, content = f"{_WRITERS}/probe_{secrets.token_hex(4)}", b"written, read and removed by a run that starts"
        self._store.send_bytes(content, name)
        self._store.sizes(_STATES)
        self._store.read(name, bytes)
        self._store.remove(name)

    def register(self, run: str) -> None:
        """Record a run in the store before its first checkpoint is uploaded.

        You call it once when a new run starts. If the process is killed after its first save and before the first
        upload, ``fetch`` then still uses the checkpoints of this run that are on the local disk. Without the call, it
        ignores them, since they may belong to another experiment. For a run that the store knows, the call has no
        effect.

        Args:
            run: The text that identifies the run, as in ``"run"`` of the summaries.

        Raises:
            CheckpointError: The store cannot be queried or written to.

        Example:
            >>> from pa_checkpoint import RemoteFolder
            >>> store = RemoteFolder("memory://bucket/registered")
            >>> store.register("first")
            >>> store.has_run("first")
            True
        """
        if not self.has_run(run):
            self._require_to_be_writer(key_of(run))

    def upload(self, directory: str | Path) -> RemoteCheckpoint:
        """Send a checkpoint to the store, without the files that are there already.

        You call it after a save is complete, for example in ``on_saved`` of ``Writer.save``. It returns when the
        checkpoint is in the store. The manifest, which is the list of the files, is sent last, so a killed upload
        leaves no checkpoint.

        With its first upload of a run, this object becomes the only sender of the run: older processes that still send
        checkpoints of the run get an error. So the checkpoints of a run that was started twice by mistake are not
        mixed.

        Args:
            directory: The directory of a saved checkpoint. Its name becomes the name in the store.

        Returns:
            The description of the checkpoint in the store, with ``name``, ``sequence`` and ``update``.

        Raises:
            CheckpointNotFoundError: There is no directory at the path, or the checkpoint was replaced or removed during
                the upload.
            CheckpointError: The checkpoint is damaged, a newer process sends checkpoints of the run, or the
                store cannot be reached.
            OSError: The checkpoint cannot be read.

        Example:
            >>> import tempfile
            >>> from pa_checkpoint import RemoteFolder, save
            >>> store = RemoteFolder("memory://bucket/uploads")
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     save(f"{folder}/step_200", {"step": 200}, summary={"run": "first", "update": 200})
            ...     uploaded = store.upload(f"{folder}/step_200")
            >>> uploaded.name, uploaded.update
            ('step_200', 200)
        """
        path = Path(directory)
        check_name(path.name)
        found = find(path)
        require_folder(path, found.path)
        manifest = read_manifest(found.path)
        check_files(found.path, manifest)
        key = key_of(str(manifest.summary.get("run", "")))
        self._require_to_be_writer(key)
        for name, entry in manifest.files.items():
            blob = f"{_FILES}/{key}/{entry.digest}"
            if self._store.size(blob) != entry.bytes:
                self._store.send(found.path / name, blob)
                self._require_same(path, found, blob)
        self._require_to_be_writer(key)
        name = _object_name(path.name, manifest)
        self._store.send(found.path / MANIFEST, f"{_STATES}/{name}")
        self._require_same(path, found, f"{_STATES}/{name}")
        self._manifests[name] = manifest
        return cast("RemoteCheckpoint", _state(name))

    def _require_same(self, state: Path, found: Found, sent: str) -> None:
        """Remove a sent object if another checkpoint, to which it may belong, has taken the path in the meantime."""
        if find(state) != found:
            self._store.remove(sent)
            raise CheckpointNotFoundError(
                "The checkpoint was replaced or removed while it was sent.",
                given=str(state),
                do="Send the checkpoint that is there now.",
            )

    def _require_to_be_writer(self, key: str) -> None:
        """Become the sender of a run, or raise an error if a newer process has become its sender."""
        folder = f"{_WRITERS}/{key}"
        numbers = {name: int(match[1]) for name in self._store.sizes(folder) if (match := _WRITER.fullmatch(name))}
        if key not in self._writers:
            self._writers[key] = f"{1 + max(numbers.values(), default=0):06d}_{secrets.token_hex(4)}"
            text = f"{socket.gethostname()} {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n"
            self._store.send_bytes(text.encode(), f"{folder}/{self._writers[key]}")
            for name in numbers:
                self._store.remove(f"{folder}/{name}")
            return
        newest = max(numbers, default="")
        if newest > self._writers[key]:
            last = self._store.read(f"{folder}/{newest}", lambda text: text.decode(errors="replace").strip())
            raise CheckpointError(
                "Another process sends checkpoints of this run to the object store by now.",
                given=f"{self.url}, where {last} was the last to begin",
                do="End this process, or the other process.",
            )

    # Removing

    def keep(self, newest: int, run: str) -> list[RemoteCheckpoint]:
        """Remove all checkpoints of a run except the newest, and the files that no remaining checkpoint needs.

        You call it after each ``upload``, with the same object; only the process that uploads the checkpoints of the
        run may call it. If several checkpoints have the same name, only the newest complete one of them counts, as in a
        folder. Checkpoints with missing files do not count. Checkpoints of other runs stay. Files of unfinished uploads
        are removed a minute later, by a further call.

        Args:
            newest: How many checkpoints to keep, at least 1.
            run: The text that identifies the run, as in ``"run"`` of the summaries.

        Returns:
            The removed checkpoints.

        Raises:
            ValueError: ``newest`` is less than 1.
            CheckpointError: A newer process sends checkpoints of the run, or the store cannot be queried.

        Example:
            >>> import tempfile
            >>> from pa_checkpoint import RemoteFolder, save
            >>> store = RemoteFolder("memory://bucket/kept")
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     for step in (1, 2, 3):
            ...         save(f"{folder}/step_{step}", {"step": step}, summary={"run": "first"})
            ...         uploaded = store.upload(f"{folder}/step_{step}")
            >>> [state.name for state in store.keep(newest=2, run="first")]
            ['step_1']
        """
        key = key_of(run)
        self._require_to_be_writer(key)
        own = {state.object_name: state for state in self.states() if state.key == key}
        sizes = self._store.sizes(f"{_FILES}/{key}")
        records = [record for state in own.values() if (record := self._record(state, run, sizes)) is not None]
        replaced = _replaced(own, records)
        remaining = [record for record in records if own[record.path.name] not in replaced]
        old = states_to_remove(remaining, newest, lambda record: record.run == run)
        removed = [*replaced, *(own[record.path.name] for record in old)]
        for state in removed:
            self._store.remove(f"{_STATES}/{state.object_name}")
        given_up = {
            entry.digest
            for state in removed
            if (manifest := self._manifests.pop(state.object_name, None)) is not None
            for entry in manifest.files.values()
        }
        self._remove_unneeded(key, sizes, given_up)
        return removed

    def _record(self, state: RemoteCheckpoint, run: str, sizes: Mapping[str, int]) -> CheckpointInfo | None:
        """Return the description of a checkpoint, or None if it was removed and is still listed."""
        try:
            files = self._read(state).files.values()
            problem = None if all(sizes.get(entry.digest) == entry.bytes for entry in files) else "a file is missing"
        except CheckpointNotFoundError:
            return None
        except ObjectStoreError:
            raise
        except CheckpointError as error:
            problem = error.given
        path = Path(state.object_name)
        return CheckpointInfo(path, state.sequence, run, state.update, epoch=0, complete=False, problem=problem)

    def _remove_unneeded(self, key: str, files: Collection[str], given_up: Collection[str]) -> None:
        """Remove files of removed checkpoints and of unfinished uploads that no checkpoint needs.

        Files of unfinished uploads are removed after a delay, since their checkpoint may not be listed yet.
        """
        # Listed again, together with the objects that this process has sent, whether they are listed or not.
        states = {state.object_name: state for state in self.states() if state.key == key}
        needed = {entry.digest for name in self._manifests for entry in self._manifests[name].files.values()}
        for state in states.values():
            try:
                needed |= {entry.digest for entry in self._read(state).files.values()}
            except CheckpointNotFoundError:  # it was removed, and is still listed
                continue
            except ObjectStoreError:
                raise
            except CheckpointError:  # which files it needs cannot be known as long as it is there
                return
        now = time.monotonic()
        self._unneeded = {name: self._unneeded.get(name, now) for name in set(files) - needed}
        for name, since in sorted(self._unneeded.items()):
            if name in given_up or now - since >= SECONDS_TO_SETTLE:
                self._store.remove(f"{_FILES}/{key}/{name}")

    # Fetching

    def fetch(
        self,
        into: str | Path,
        *,
        name: str | None = None,
        digest: str | None = None,
        say: Callable[[str], None] | None = None,
    ) -> tuple[Path, list[Skipped]]:
        """Download the newest complete checkpoint to a local folder, and return its path.

        You call it on rank 0 at the start of a script on a new machine, and pass the path to ``load``. Each file is
        compared with its digest. A damaged checkpoint is skipped, and the next older checkpoint is tried. Nothing is
        downloaded if the folder already has the checkpoint. If the folder has a newer checkpoint of a run that the
        store knows, for example because the process was killed before the upload, the path of that checkpoint is
        returned. To download a checkpoint of your choice, use ``download``.

        Args:
            into: The local folder, which is created if it is missing.
            name: The name of the wanted checkpoint, for example ``"final"``. The default, None, allows all names, since
                a resumed run continues from the newest.
            digest: The digest of the wanted checkpoint, as ``verify`` returns it. The default, None, allows all
                checkpoints.
            say: A function that is called with a sentence before a download, for example ``print``. The default, None,
                gives no message.

        Returns:
            A pair: the path of the checkpoint in the folder, and the list of the skipped checkpoints, newest first,
            which is usually empty.

        Raises:
            CheckpointNotFoundError: The store has no such checkpoint.
            CheckpointError: No checkpoint is complete, the store cannot be queried, or the folder cannot be written to.

        Example:
            >>> import tempfile
            >>> from pa_checkpoint import RemoteFolder, load, save
            >>> store = RemoteFolder("memory://bucket/fetched")
            >>> with tempfile.TemporaryDirectory() as disk, tempfile.TemporaryDirectory() as other_disk:
            ...     save(f"{disk}/step_200", {"step": 200}, summary={"run": "first"})
            ...     uploaded = store.upload(f"{disk}/step_200")
            ...     path, skipped = store.fetch(other_disk)
            ...     load(path)["step"], skipped
            (200, [])
        """
        folder = Folder(into)
        states = [state for state in self.states() if name in (None, state.name)]
        local = self._newest_local(folder, states) if name is None and digest is None else None
        skipped: list[Skipped] = []
        for state in reversed(states):
            if local is not None and (local.sequence, local.update) >= state.age:
                break
            try:
                if digest is None or self.digest(state) == digest:
                    return self._bring(state, folder, say), skipped
            except CheckpointNotFoundError:  # it was removed meanwhile
                continue
            except ObjectStoreError:
                raise
            except CheckpointError as error:
                skipped.append(Skipped(Path(state.name), reason_of(error)))
        if local is not None:
            return local.path, skipped
        if skipped:
            raise CheckpointError(
                "None of the checkpoints in the object store is valid.",
                given=f"{self.url} with {'; '.join(f'{entry.path}: {entry.reason}' for entry in skipped)}",
                do="Restore one from a backup, or remove them to begin a new run.",
            )
        raise CheckpointNotFoundError(
            "There is no such checkpoint in the object store.",
            given=f"{self.url}{'' if name is None else f' without {name}'}",
            do="Check the URL.",
        )

    def _newest_local(self, folder: Folder, states: Collection[RemoteCheckpoint]) -> CheckpointInfo | None:
        """Return the newest complete checkpoint in a folder that belongs to a run of the store."""
        records = [record for record in folder.records() if record.problem is None]
        keys = {state.key for state in states}
        known = {run for run in {record.run for record in records} if key_of(run) in keys or self.has_run(run)}
        return next((record for record in reversed(records) if record.run in known and _is_whole(record.path)), None)

    def _bring(self, state: RemoteCheckpoint, folder: Folder, say: Callable[[str], None] | None) -> Path:
        """Return the path of a checkpoint in a folder, after downloading it if necessary."""
        digest = self.digest(state)
        for record in folder.records():
            if record.digest == digest and _is_whole(record.path):
                return record.path
        if say is not None:
            say(f"Fetching {state.name} from {without_secrets(self.url)} into {folder.path}.")
        return self.download(state, folder.path)

    def download(self, state: RemoteCheckpoint, folder: str | Path) -> Path:
        """Download a checkpoint of the store to a folder.

        You call it with a checkpoint that you have chosen from ``states``; ``fetch`` chooses the newest by itself. Each
        file is compared with its digest. The directory appears in the folder completely or not at all.

        Args:
            state: A checkpoint that ``states`` has listed.
            folder: The local folder, which is created if it is missing. A checkpoint of the same run and name is
                replaced; if anything else has the name, a number is appended to the name.

        Returns:
            The directory of the checkpoint, with exactly the files that were uploaded.

        Raises:
            CheckpointNotFoundError: The checkpoint was removed from the store.
            CheckpointError: The checkpoint is damaged, the store cannot be queried, or the disk is full.

        Example:
            >>> import tempfile
            >>> from pa_checkpoint import RemoteFolder, load, save
            >>> store = RemoteFolder("memory://bucket/downloads")
            >>> with tempfile.TemporaryDirectory() as disk, tempfile.TemporaryDirectory() as other_disk:
            ...     save(f"{disk}/step_200", {"step": 200}, summary={"run": "first"})
            ...     uploaded = store.upload(f"{disk}/step_200")
            ...     load(store.download(store.states()[0], other_disk))["step"]
            200
        """
        text, manifest = self._read_anew(state)
        run = str(manifest.summary.get("run", ""))
        target = Folder(os.path.realpath(folder)).path_for(state.name, run)
        try:
            with staged(target, run) as staging:
                for name, entry in manifest.files.items():
                    self._store.fetch(f"{_FILES}/{state.key}/{entry.digest}", staging / name, entry)
                    sync_file(staging / name)
                (staging / MANIFEST).write_bytes(text)
                sync_file(staging / MANIFEST)
                publish(staging, target)
        except CheckpointNotFoundError:
            raise
        except OSError as error:
            raise CheckpointError(
                "A checkpoint could not be downloaded to the disk.",
                given=f"{target}: {error}",
                do="Free some space, or choose another folder.",
            ) from error
        return target

    def _read(self, state: RemoteCheckpoint) -> Manifest:
        """Return the manifest of a checkpoint.

        Raises:
            CheckpointNotFoundError: The checkpoint was removed.
            CheckpointError: The manifest is damaged, or the store cannot be queried.
        """
        if state.object_name not in self._manifests:
            _, self._manifests[state.object_name] = self._read_anew(state)
        return self._manifests[state.object_name]

    def _read_anew(self, state: RemoteCheckpoint) -> tuple[bytes, Manifest]:
        """Return the manifest of a checkpoint as the store has it now."""

        def parse(text: bytes) -> tuple[bytes, Manifest]:
            manifest = parse_manifest(text, Path(state.object_name))
            if _object_name(state.name, manifest) != state.object_name:
                raise damage(Path(state.object_name), "the manifest of another checkpoint")
            return text, manifest

        try:
            return self._store.read(f"{_STATES}/{state.object_name}", parse)
        except FileNotFoundError as error:
            raise CheckpointNotFoundError(
                "The checkpoint is not in the object store any more.",
                given=f"{self.url}/{_STATES}/{state.object_name}",
                do="Use a newer checkpoint.",
            ) from safe_cause(error, self.url)


def _is_whole(directory: Path) -> bool:
    """Return whether all files of a checkpoint on the disk have their digests."""
    folder = located(directory)
    try:
        manifest = read_manifest(folder)
        check_files(folder, manifest)
        files = manifest.files.items()
        return all(digest_of(folder / name, entry.digest) == entry.digest for name, entry in files)
    except (CheckpointError, OSError):
        return False


def _replaced(states: Mapping[str, RemoteCheckpoint], records: Sequence[CheckpointInfo]) -> list[RemoteCheckpoint]:
    """Return the checkpoints with the name of a later complete checkpoint; both arguments begin with the oldest."""
    newest = {state.name: state for state in (states[record.path.name] for record in records if record.problem is None)}
    found = [states[record.path.name] for record in records]
    return [state for state in found if state.age < newest.get(state.name, state).age]


def _state(object_name: str) -> RemoteCheckpoint | None:
    """Return the checkpoint that the name of an object describes, or None."""
    match = _STATE.fullmatch(object_name)
    if match is None:
        return None
    return RemoteCheckpoint(
        object_name, int(match["sequence"]), int(match["update"]), match["key"], unquote(match["name"])
    )


def _object_name(name: str, manifest: Manifest) -> str:
    """Return the name of the manifest of a checkpoint in the store."""
    summary = manifest.summary
    sequence, update, run = summary.get("sequence", 0), summary.get("update", 0), str(summary.get("run", ""))
    return f"{sequence:09}_{update}_{key_of(run)}_{quote(name, safe='')}.json"
