"""Indexes of files, such as the positions of lines, which are computed once and kept in a folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from pa_data.files._file_systems import Stamp, is_url

__all__ = ["Arrays", "IndexFolder"]

Arrays: TypeAlias = Mapping[str, NDArray[np.generic]]
"""One-dimensional arrays by name, for example with the beginning of each line."""

_LOCK = ".lock"
_DIGEST = "sha256"
_MOST_CHARACTERS = 120


class IndexFolder:
    """A folder with a small index file for each file of a dataset, whose arrays are mapped into memory.

    An index is valid as long as its file has the recorded size and version, and its digest is right. If several
    processes miss the same index, the first computes it, and the others wait.

    Args:
        folder: The folder, which is created if it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._verified: set[Path] = set()

    def get(self, path: str, kind: str, stamp: Stamp, make: Callable[[], Arrays]) -> Arrays:
        """Return the index of a file.

        Args:
            path: The file.
            kind: The versioned name of the algorithm that computes the index.
            stamp: The current size and version of the file.
            make: A function that computes the index.
        """
        target = self._place(path, kind)
        meta = {"kind": kind, "size": str(stamp.size), "version": stamp.version}
        arrays = self._read(target, meta)
        if arrays is not None:
            return arrays
        with self._alone(target.name):
            arrays = self._read(target, meta)
            if arrays is None:
                made = make()
                _write(target, meta, made)
                arrays = self._read(target, meta) or made
            return arrays

    def _read(self, target: Path, meta: Mapping[str, str]) -> Arrays | None:
        """Map an index. Its bytes are verified once, since a wrong index would cut samples at wrong places."""
        arrays = _read(target, meta, verify=target not in self._verified)
        if arrays is not None:
            self._verified.add(target)
        return arrays

    def _place(self, path: str, kind: str) -> Path:
        """Return the path of the index of a file."""
        from_here = path if is_url(path) else _relative(path, self._folder)
        digest = hashlib.sha256(from_here.encode()).hexdigest()[:12]
        name = quote(path.replace("\\", "/").rpartition("/")[2], safe=" ")[:_MOST_CHARACTERS]
        return self._folder / f"{name}.{digest}.{kind}"

    @contextlib.contextmanager
    def _alone(self, name: str) -> Generator[None]:
        """Let no other process compute the same index within the block, on systems with locks."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if sys.platform == "win32":
            yield
            return
        import fcntl

        byte = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6])
        with (self._folder / _LOCK).open("wb") as file:
            with contextlib.suppress(OSError):  # a file system without locks: it is made twice, and one is kept
                fcntl.lockf(file, fcntl.LOCK_EX, 1, byte)
            yield


def _relative(path: str, folder: Path) -> str:
    """Return a path relative to a folder, or the absolute path if it is on a different drive."""
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:  # another drive
        return Path(path).absolute().as_posix()


def _write(target: Path, meta: Mapping[str, str], arrays: Arrays) -> None:
    """Write an index in a single step."""
    from safetensors.numpy import save

    made = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    whole = save(made, metadata={**meta, _DIGEST: _digest(made)})
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(whole)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


_DTYPES = {"I64": np.int64, "U8": np.uint8}


def _digest(arrays: Arrays) -> str:
    """Return the digest of arrays."""
    whole = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        whole.update(f"{name} {array.dtype} {array.shape};".encode())
        whole.update(array.data)
    return whole.hexdigest()


def _read(target: Path, meta: Mapping[str, str], *, verify: bool) -> Arrays | None:
    """Map the arrays of an index file; return None if it is missing, out of date or damaged."""
    try:
        with target.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = cast("dict[str, Any]", json.loads(file.read(length)))
        said = cast("dict[str, str]", header.pop("__metadata__"))
        digest = said.pop(_DIGEST)
        arrays = {name: _mapped(target, 8 + length, about) for name, about in header.items()}
        return arrays if said == meta and (not verify or _digest(arrays) == digest) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, MemoryError):
        return None


def _mapped(target: Path, begin: int, about: Mapping[str, Any]) -> NDArray[np.generic]:
    """Return an array that is mapped into memory."""
    shape = tuple(about["shape"])
    dtype = _DTYPES[about["dtype"]]
    if math.prod(shape) == 0:
        return np.empty(shape, dtype)
    # As a plain array, whose elements are read ten times as fast.
    return np.asarray(np.memmap(target, dtype, "r", begin + about["data_offsets"][0], shape))
