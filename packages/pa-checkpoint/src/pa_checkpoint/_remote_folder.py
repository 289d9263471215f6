"""Checkpoints in an object store: files by digest, manifest last."""

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

from pa_checkpoint._checkpoint import check_files
from pa_checkpoint._errors import (
    CheckpointError,
    CheckpointNotFoundError,
    damage,
    message_of,
    safe_cause,
    without_secrets,
)
from pa_checkpoint._files import Found, find, key_of, located, publish, sha256_of, staged, sync_file
from pa_checkpoint._folder import CheckpointInfo, Folder, Skipped, check_name, reason_of, states_to_remove
from pa_checkpoint._manifest import MANIFEST, MOST_BYTES, FileEntry, Manifest, parse_manifest, read_manifest

_ResultT = TypeVar("_ResultT")

PAUSES: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
"""The seconds before each further attempt at something that failed."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ObjectStoreError(CheckpointError):
    """An operation on an object store failed, even after retries.

    Example:
        >>> issubclass(ObjectStoreError, CheckpointError)
        True
    """


_HOPELESS = (PermissionError, ImportError, NotImplementedError, NotADirectoryError)


class _FileSystem(Protocol):
    """What is used of fsspec, which has no types."""

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
    """A folder in an object store, with objects by their names, which are paths within the folder.

    What fails is tried again, with pauses in between, unless that is hopeless. An object that was sent is looked at:
    one that is not there in its full size is sent again.

    Args:
        url: Its URL, of a kind that fsspec knows.

    Example:
        >>> store = ObjectStore("memory://bucket/first")
        >>> store.send_bytes(b"what is in it", "states/one")
        >>> store.sizes("states"), store.read("states/one", bytes)
        ({'one': 13}, b'what is in it')
        >>> store.remove("states/one")
        >>> store.sizes("states")
        {}
    """

    def __init__(self, url: str) -> None:
        self.url: str = url.rstrip("/")
        self._opened: tuple[_FileSystem, str] | None = None

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes of the objects in a folder, by their names; empty where there is no such folder.

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
        """Return the size of an object; None if it is not there.

        Raises:
            ObjectStoreError: The store cannot be queried.
        """
        return self._persistently(name, _size)

    def send(self, file: Path, name: str) -> None:
        """Have the content of a file in an object.

        Raises:
            ObjectStoreError: It cannot be sent.
            OSError: The file cannot be read.
        """
        size = file.stat().st_size
        self._send(name, size, lambda files, path: files.put_file(str(file), path))

    def send_bytes(self, content: bytes, name: str) -> None:
        """Have some bytes in an object.

        Raises:
            ObjectStoreError: They cannot be sent.
        """
        self._send(name, len(content), lambda files, path: files.pipe_file(path, content))

    def read(self, name: str, parse: Callable[[bytes], _ResultT]) -> _ResultT:
        """Return what a function makes of the content of a small object.

        Args:
            name: The object.
            parse: Raises a ``CheckpointError`` if the content is damaged, which is then read again.

        Raises:
            FileNotFoundError: There is none of this name.
            CheckpointError: What ``parse`` raised, it is not small, or it cannot be read, which is an
                ``ObjectStoreError``.
        """

        def read(files: _FileSystem, path: str) -> _ResultT:
            size = _size(files, path)
            if size is not None and size > MOST_BYTES:
                raise damage(Path(name), f"{size:,} bytes", f"at most {MOST_BYTES:,}")
            return parse(files.cat_file(path))

        return self._persistently(name, read)

    def fetch(self, name: str, file: Path, entry: FileEntry) -> None:
        """Have the content of an object in a file, exactly as it was sent.

        Args:
            name: The object.
            file: The file, which is written.
            entry: The size, of which nothing larger is downloaded, and the digest of its bytes.

        Raises:
            OSError: The local disk is full.
            CheckpointError: It is not there or has other bytes, or cannot be read, which is an ``ObjectStoreError``.
        """

        def fetch(files: _FileSystem, path: str) -> None:
            if (size := _size(files, path)) is not None and size != entry.bytes:
                raise damage(Path(file.name), f"{size:,} bytes at {self.url}/{name}", f"{entry.bytes:,} bytes")
            files.get_file(path, str(file))
            if sha256_of(file) != entry.sha256:
                raise damage(Path(file.name), f"other bytes at {self.url}/{name}")

        try:
            self._persistently(name, fetch)
        except FileNotFoundError as error:
            raise damage(Path(file.name), f"nothing at {self.url}/{name}") from safe_cause(error, self.url)

    def remove(self, name: str) -> None:
        """Remove an object, or nothing if there is none of this name.

        Raises:
            ObjectStoreError: It cannot be removed.
        """

        def remove(files: _FileSystem, path: str) -> None:
            try:
                files.rm_file(path)
            except FileNotFoundError:
                return

        self._persistently(name, remove)

    def _send(self, name: str, size: int, write: Callable[[_FileSystem, str], object]) -> None:
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
        """Do something, again if it fails.

        Raises:
            FileNotFoundError: What the action raised.
            OSError: The local disk is full.
            CheckpointError: All attempts failed, or the first one did in a way that will not change. It is an
                ``ObjectStoreError`` unless an object is damaged.
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
                if not isinstance(error, CheckpointError):  # what came damaged may come whole at once
                    time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _open(self) -> tuple[_FileSystem, str]:
        if self._opened is None:
            try:
                from fsspec.core import url_to_fs  # pyright: ignore[reportUnknownVariableType]  # it has no types

                files, root = cast("tuple[_FileSystem, str]", url_to_fs(self.url))
            except Exception as error:  # as below
                raise self._explained("", error) from safe_cause(error, self.url)
            self._opened = files, root.rstrip("/")
        return self._opened

    def _explained(self, name: str, error: Exception) -> ObjectStoreError:
        return ObjectStoreError(
            "An operation on the object store failed.",
            given=f"{self.url}/{name}: {message_of(error, self.url)}",
            expected="the URL of a bucket in which this process may list, read, write and remove objects",
            do="Check the URL, the credentials and the connection. Install pa-checkpoint[fsspec], and s3fs for s3://.",
        )


def _size(files: _FileSystem, path: str) -> int | None:
    try:
        return int(files.info(path)["size"] or 0)
    except FileNotFoundError:
        return None


def _make_folder(files: _FileSystem, folder: str) -> None:
    """Make a folder where folders are made, and what it is in; never a bucket."""
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
"""How long what no checkpoint needs is left alone: a listing may not show yet the checkpoint that needs it."""


@dataclass(frozen=True, slots=True)
class RemoteCheckpoint:
    """A checkpoint in an object store, as its name tells.

    Attributes:
        object_name: The name of its manifest.
        sequence: Its place in the order in which the checkpoints of the folder were written.
        update: The optimizer updates made before it was written.
        key: What stands for the run that wrote it.
        name: What its directory is called on disk.

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
        """What sorts checkpoints from oldest to newest, without a clock."""
        return self.sequence, self.update

    def is_of(self, run: str) -> bool:
        """Whether it was written by the run of this name."""
        return self.key == key_of(run)


class RemoteFolder:
    """Checkpoints in a folder of an object store, of one run or of several.

    Args:
        url: The folder, as a URL of a kind that fsspec knows.

    Example:
        >>> import tempfile
        >>> from pa_checkpoint import load, save
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
        """The folder."""
        return self._store.url

    def explained(self, problem: str, place: object, error: Exception) -> CheckpointError:
        """Return an error of this folder with what was to be done, and without what of its URL is secret.

        Args:
            problem: What has failed.
            place: What that was to be done with.
            error: What was raised. It is the cause of the new one, unless its traceback could show secrets.

        Example:
            >>> store = RemoteFolder("memory://me:secret@bucket/states")
            >>> store.explained("A checkpoint was not sent.", "step_100", OSError("secret is wrong")).given
            'step_100: OSError: *** is wrong'
        """
        reason, do = message_of(error, self.url), "See whether the checkpoint is still there."
        if isinstance(error, CheckpointError):
            reason, do = f"{error.problem} {error.given}", error.do
        explained = CheckpointError(problem, given=f"{place}: {reason}", do=do)
        explained.__cause__ = safe_cause(error, self.url)
        return explained

    # What is there

    def states(self) -> list[RemoteCheckpoint]:
        """List the checkpoints, oldest first.

        Raises:
            ObjectStoreError: The store cannot be asked.
        """
        found = (_state(name) for name in self._store.sizes(_STATES))
        return sorted((state for state in found if state is not None), key=lambda state: (state.age, state.name))

    def has_run(self, run: str) -> bool:
        """Whether a run is known here: it was registered, or has begun to send checkpoints.

        Raises:
            ObjectStoreError: The store cannot be asked.
        """
        return bool(self._store.sizes(f"{_WRITERS}/{key_of(run)}"))

    def has_later(self, run: str, sequence: int, update: int) -> bool:
        """Whether a checkpoint of a run is here that was written later than one of this sequence and update.

        Checkpoints whose files are not all there do not count.

        Raises:
            ObjectStoreError: The store cannot be asked.
        """
        key = key_of(run)
        later = [state for state in self.states() if state.key == key and state.age > (sequence, update)]
        sizes = self._store.sizes(f"{_FILES}/{key}") if later else {}
        records = (self._record(state, run, sizes) for state in later)
        return any(record is not None and record.problem is None for record in records)

    def next_sequence(self) -> int:
        """Return 1 more than the highest sequence of a checkpoint here, or 1.

        Raises:
            ObjectStoreError: The store cannot be asked.
        """
        return 1 + max((state.sequence for state in self.states()), default=0)

    def digest(self, state: RemoteCheckpoint) -> str:
        """Return the digest of a checkpoint, as ``load`` does.

        Raises:
            CheckpointError: Its manifest is not there, or damaged, or the store cannot be queried.
        """
        return self._read(state).digest

    # Sending

    def check(self) -> None:
        """See that objects can be written, read, listed and removed.

        Raises:
            ObjectStoreError: They cannot.
        """
        name, content = f"{_WRITERS}/probe_{secrets.token_hex(4)}", b"written, read and removed by a run that starts"
        self._store.send_bytes(content, name)
        self._store.sizes(_STATES)
        self._store.read(name, bytes)
        self._store.remove(name)

    def register(self, run: str) -> None:
        """Have the store know a run before its first checkpoint, which counts on the disk until it is sent.

        Raises:
            ObjectStoreError: The store cannot be queried, or not written to.
        """
        if not self.has_run(run):
            self._require_to_be_writer(key_of(run))

    def upload(self, directory: str | Path) -> RemoteCheckpoint:
        """Send a checkpoint, without the files that are there already, and its manifest last.

        When this object sends the first one of a run, other processes can send no more checkpoints of that run.

        Args:
            directory: The checkpoint.

        Returns:
            What it is in the store.

        Raises:
            CheckpointNotFoundError: It was replaced or removed meanwhile.
            CheckpointError: It is not there or damaged, another process sends checkpoints of the run by now, or the
                store cannot be reached.
            OSError: The checkpoint cannot be read.
        """
        path = Path(directory)
        check_name(path.name)
        found = find(path)
        manifest = read_manifest(found.path)
        check_files(found.path, manifest)
        key = key_of(str(manifest.summary.get("run", "")))
        self._require_to_be_writer(key)
        for name, entry in manifest.files.items():
            blob = f"{_FILES}/{key}/{entry.sha256}"
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
        """Take back what was sent if another checkpoint is there by now, which it may belong to."""
        if find(state) != found:
            self._store.remove(sent)
            raise CheckpointNotFoundError(
                "The checkpoint was replaced or removed while it was sent.",
                given=str(state),
                do="Send the one that is there now.",
            )

    def _require_to_be_writer(self, key: str) -> None:
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
                do="End this process, or the other one.",
            )

    # Removing

    def keep(self, newest: int, run: str) -> list[RemoteCheckpoint]:
        """Remove the checkpoints of a run but the newest whole ones, and the files that none of the others needs.

        Of checkpoints with the same name, only the newest whole one counts, as in a folder.
        Checkpoints of other runs, and their files, stay. Only the process that sends the run's checkpoints may call
        this.

        Args:
            newest: How many checkpoints stay, at least 1.
            run: The run.

        Returns:
            What was removed.

        Raises:
            ValueError: ``newest`` is less than 1.
            CheckpointError: Another process sends checkpoints of the run by now, or the store cannot be queried.
        """
        key = key_of(run)
        self._require_to_be_writer(key)
        own = {state.object_name: state for state in self.states() if state.key == key}
        sizes = self._store.sizes(f"{_FILES}/{key}")
        records = [record for state in own.values() if (record := self._record(state, run, sizes)) is not None]
        replaced = _replaced(own, records)
        remaining = [record for record in records if own[record.path.name] not in replaced]
        old = states_to_remove(remaining, newest, lambda record: record.run == run)
        removed = [*replaced, *(own[one.path.name] for one in old)]
        for state in removed:
            self._store.remove(f"{_STATES}/{state.object_name}")
        given_up = {
            entry.sha256
            for state in removed
            if (manifest := self._manifests.pop(state.object_name, None)) is not None
            for entry in manifest.files.values()
        }
        self._remove_unneeded(key, sizes, given_up)
        return removed

    def _record(self, state: RemoteCheckpoint, run: str, sizes: Mapping[str, int]) -> CheckpointInfo | None:
        """What is known of a checkpoint; None of one that was removed, and is still listed."""
        try:
            files = self._read(state).files.values()
            problem = None if all(sizes.get(entry.sha256) == entry.bytes for entry in files) else "a file is missing"
        except CheckpointNotFoundError:
            return None
        except ObjectStoreError:
            raise
        except CheckpointError as error:
            problem = error.given
        path = Path(state.object_name)
        return CheckpointInfo(path, state.sequence, run, state.update, epoch=0, complete=False, problem=problem)

    def _remove_unneeded(self, key: str, files: Collection[str], given_up: Collection[str]) -> None:
        """Remove files that no checkpoint needs: files of removed checkpoints, and half-sent files.

        The latter waits: it may belong to a checkpoint that is not listed yet.
        """
        # Listed anew, with what this process has sent, whether it is listed or not.
        states = {state.object_name: state for state in self.states() if state.key == key}
        needed = {entry.sha256 for name in self._manifests for entry in self._manifests[name].files.values()}
        for state in states.values():
            try:
                needed |= {entry.sha256 for entry in self._read(state).files.values()}
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
        """Have the newest whole checkpoint in a local folder, each file compared with its digest.

        What the folder has already is not downloaded. If it has a newer one, of a run that is known here, that is the
        one: its process was killed before it was uploaded.

        Args:
            into: The folder.
            name: Has the newest one of this name instead.
            digest: Has the one with this digest instead.
            say: Told what is downloaded.

        Returns:
            Its path, and those that were skipped, newest first.

        Raises:
            CheckpointNotFoundError: There is none.
            CheckpointError: None is whole, the store cannot be queried, or the folder not written to.
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
                given=f"{self.url} with {'; '.join(f'{one.path}: {one.reason}' for one in skipped)}",
                do="Restore one from a backup, or remove them to begin a new run.",
            )
        raise CheckpointNotFoundError(
            "There is no such checkpoint in the object store.",
            given=f"{self.url}{'' if name is None else f' without {name}'}",
            do="Check the URL.",
        )

    def _newest_local(self, folder: Folder, states: Collection[RemoteCheckpoint]) -> CheckpointInfo | None:
        """The newest whole one in the folder that is of a run which the store knows."""
        records = [record for record in folder.records() if record.problem is None]
        keys = {state.key for state in states}
        known = {run for run in {record.run for record in records} if key_of(run) in keys or self.has_run(run)}
        return next((one for one in reversed(records) if one.run in known and _is_whole(one.path)), None)

    def _bring(self, state: RemoteCheckpoint, folder: Folder, say: Callable[[str], None] | None) -> Path:
        digest = self.digest(state)
        for record in folder.records():
            if record.digest == digest and _is_whole(record.path):
                return record.path
        if say is not None:
            say(f"Fetching {state.name} from {without_secrets(self.url)} into {folder.path}.")
        return self.download(state, folder.path)

    def download(self, state: RemoteCheckpoint, folder: str | Path) -> Path:
        """Fetch a checkpoint into a folder, where it is the same as it was on the disk from which it was sent.

        Args:
            state: The checkpoint.
            folder: The folder, made if it is missing; a checkpoint of the same run and name is replaced.

        Returns:
            Its directory.

        Raises:
            CheckpointError: It is not there any more, or damaged, or the store cannot be queried, or the disk is full.
        """
        text, manifest = self._read_anew(state)
        run = str(manifest.summary.get("run", ""))
        target = Folder(os.path.realpath(folder)).path_for(state.name, run)
        try:
            with staged(target, run) as staging:
                for name, entry in manifest.files.items():
                    self._store.fetch(f"{_FILES}/{state.key}/{entry.sha256}", staging / name, entry)
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
        """Return what the manifest of a checkpoint says.

        Raises:
            CheckpointNotFoundError: It is not there any more.
            CheckpointError: It is damaged, or the store cannot be queried.
        """
        if state.object_name not in self._manifests:
            _, self._manifests[state.object_name] = self._read_anew(state)
        return self._manifests[state.object_name]

    def _read_anew(self, state: RemoteCheckpoint) -> tuple[bytes, Manifest]:
        """Return the manifest of a checkpoint as it is in the store."""

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
                do="Use a newer one.",
            ) from safe_cause(error, self.url)


def _is_whole(directory: Path) -> bool:
    """Whether each file of a checkpoint on the disk is as it was written."""
    folder = located(directory)
    try:
        manifest = read_manifest(folder)
        check_files(folder, manifest)
        return all(sha256_of(folder / name) == entry.sha256 for name, entry in manifest.files.items())
    except (CheckpointError, OSError):
        return False


def _replaced(states: Mapping[str, RemoteCheckpoint], records: Sequence[CheckpointInfo]) -> list[RemoteCheckpoint]:
    """Return the checkpoints with the name of a later whole one; both arguments have the oldest first."""
    newest = {one.name: one for one in (states[record.path.name] for record in records if record.problem is None)}
    found = [states[record.path.name] for record in records]
    return [state for state in found if state.age < newest.get(state.name, state).age]


def _state(object_name: str) -> RemoteCheckpoint | None:
    match = _STATE.fullmatch(object_name)
    if match is None:
        return None
    return RemoteCheckpoint(
        object_name, int(match["sequence"]), int(match["update"]), match["key"], unquote(match["name"])
    )


def _object_name(name: str, manifest: Manifest) -> str:
    summary = manifest.summary
    sequence, update, run = summary.get("sequence", 0), summary.get("update", 0), str(summary.get("run", ""))
    return f"{sequence:09}_{update}_{key_of(run)}_{quote(name, safe='')}.json"
