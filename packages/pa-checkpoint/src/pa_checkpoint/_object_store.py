"""Objects in a store that fsspec knows, such as S3: sent and fetched whole, tried again where that helps."""

from __future__ import annotations

import errno
import posixpath
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from pa_checkpoint._digested_file import sha256_of
from pa_checkpoint._errors import CheckpointError, damage

__all__ = ["ObjectStore", "ObjectStoreError"]

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
            CheckpointError: What ``parse`` raised, or it cannot be read, which is an ``ObjectStoreError``.
        """
        return self._persistently(name, lambda files, path: parse(files.cat_file(path)))

    def fetch(self, name: str, file: Path, sha256: str) -> None:
        """Have the content of an object in a file, exactly as it was sent.

        Args:
            name: The object.
            file: The file, which is written.
            sha256: The digest of its bytes.

        Raises:
            OSError: The local disk is full.
            CheckpointError: It is not there or has other bytes, or cannot be read, which is an ``ObjectStoreError``.
        """

        def fetch(files: _FileSystem, path: str) -> None:
            files.get_file(path, str(file))
            if sha256_of(file) != sha256:
                raise damage(Path(file.name), f"other bytes at {self.url}/{name}")

        try:
            self._persistently(name, fetch)
        except FileNotFoundError as error:
            raise damage(Path(file.name), f"nothing at {self.url}/{name}") from error

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
                message = f"{'nothing' if there is None else f'{there} bytes'} instead of {size} bytes that were sent"
                raise OSError(message)

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
                    raise self._explained(name, error) from error
                if not isinstance(error, CheckpointError):  # what came damaged may come whole at once
                    time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _open(self) -> tuple[_FileSystem, str]:
        if self._opened is None:
            try:
                from fsspec.core import url_to_fs  # pyright: ignore[reportUnknownVariableType]  # it has no types

                files, root = cast("tuple[_FileSystem, str]", url_to_fs(self.url))
            except Exception as error:  # as below
                raise self._explained("", error) from error
            self._opened = files, root.rstrip("/")
        return self._opened

    def _explained(self, name: str, error: Exception) -> ObjectStoreError:
        return ObjectStoreError(
            "An operation on the object store failed.",
            given=f"{self.url}/{name}: {type(error).__name__}: {error}",
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
