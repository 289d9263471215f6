"""Files on disk or in an object store that fsspec supports: find them by patterns, and read their size and version."""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import glob
import gzip
import lzma
import os
import posixpath
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from pa_data.errors import ShardError, safe_cause, without_secrets

__all__ = ["DAMAGED", "FileSystem", "Stamp", "explained", "find_files", "is_url", "names_of", "remote", "stamp_of"]

_PATTERN = frozenset("*?[")
_NUMBERS = re.compile(r"\{(\d+)\.\.(\d+)\}")
_VERSIONS = ("ETag", "etag", "md5Hash", "generation", "LastModified", "last_modified", "updated", "mtime")
"""The entries of different stores that change whenever a file changes."""


@dataclass(frozen=True)
class Stamp:
    """Values that stay the same as long as a file does.

    Attributes:
        size: The size in bytes.
        version: The time of the last change, or a tag of the store; empty if unknown.
    """

    size: int
    version: str


class FileSystem(Protocol):
    """The fsspec methods that are used here; fsspec has no types."""

    def info(self, path: str) -> dict[str, Any]: ...
    def glob(self, path: str) -> list[str]: ...
    def unstrip_protocol(self, name: str) -> str: ...
    def cat_file(self, path: str, start: int, end: int) -> bytes: ...
    def open(self, path: str, mode: str, cache_type: str) -> BinaryIO: ...


def is_url(path: str) -> bool:
    """Return whether a path is a URL, such as ``s3://bucket/train.parquet``."""
    return "://" in path or "::" in path


def remote(url: str, options: Mapping[str, Any]) -> tuple[FileSystem, str]:
    """Return the file system of a URL, and the path in it.

    Args:
        url: The URL.
        options: The arguments for the file system, in the form that fsspec accepts.

    Raises:
        ShardError: fsspec is not installed, or does not support the URL.
    """
    try:
        from fsspec.core import url_to_fs  # pyright: ignore[reportUnknownVariableType]  # it has no types

        return cast("tuple[FileSystem, str]", url_to_fs(url, **options))
    except Exception as error:  # what the libraries of the stores raise has no common base
        raise explained(url, error) from safe_cause(error, url)


def find_files(paths: Iterable[str | os.PathLike[str]], options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the named files, with each pattern replaced by its matching files in sorted order.

    Args:
        paths: Paths, URLs, and patterns with ``*``, ``?``, ``[]``, ``**`` or ``{000..123}``.
        options: The arguments for the file system of URLs.

    Raises:
        ShardError: No file matches a pattern, or a file is named twice.
    """
    whole = (whole_path for path in paths for whole_path in _numbered(os.fspath(path)))
    found = [file for path in whole for file in _fitting(path, options)]
    places: set[str] = set()
    for file in found:
        place = file if is_url(file) else os.path.abspath(file)  # noqa: PTH100 - Path.absolute() keeps ".."
        if place in places:
            raise ShardError(f"A file is named twice. Got {file}. Pass each path, and each pattern, once.")
        places.add(place)
    if not found:
        raise ShardError("There are no files: paths is empty.")
    return tuple(found)


def _numbered(path: str) -> list[str]:
    """Expand ``{000..123}``, which abbreviates the names of many archives."""
    match = _NUMBERS.search(path)
    if match is None:
        return [path]
    first, last = match[1], match[2]
    numbers = (f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1))
    return [
        expanded for number in numbers for expanded in _numbered(path[: match.start()] + number + path[match.end() :])
    ]


def _fitting(path: str, options: Mapping[str, Any]) -> list[str]:
    """Return the files that match a pattern, sorted."""
    if _PATTERN.isdisjoint(path) or (not is_url(path) and Path(path).exists()):
        return [path]
    if is_url(path):
        files, pattern = remote(path, options)
        found = sorted(files.unstrip_protocol(name) for name in files.glob(pattern))
    else:
        found = sorted(name for name in glob.glob(path, recursive=True) if Path(name).is_file())  # noqa: PTH207 - Path.glob takes no absolute pattern
    if not found:
        place = "" if is_url(path) else f" in {Path.cwd()}"
        raise ShardError(f"No file fits the pattern. Got {path!r}{place}. Check the folder and the ending.")
    return found


def names_of(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the names of files relative to their common folder, so that moving the folder changes no name.

    Example:
        >>> names_of(("/data/train/a.jsonl", "/data/test/a.jsonl"))
        ('train/a.jsonl', 'test/a.jsonl')
    """
    whole = [path if is_url(path) else Path(path).absolute().as_posix() for path in paths]
    folders = [posixpath.dirname(path).split("/") for path in whole]
    shared = sum(1 for _ in takewhile(lambda level: len(set(level)) == 1, zip(*folders, strict=False)))
    return tuple("/".join(path.split("/")[shared:]) for path in whole)


def stamp_of(path: str, options: Mapping[str, Any]) -> Stamp:
    """Return the size and the version of a file.

    Raises:
        ShardError: The file is missing or cannot be read.
    """
    try:
        if not is_url(path):
            status = Path(path).stat()
            return Stamp(status.st_size, str(status.st_mtime_ns))
        files, name = remote(path, options)
        info = files.info(name)
    except ShardError:
        raise
    except Exception as error:  # as in remote
        raise explained(path, error) from safe_cause(error, path)
    version = next((str(info[key]) for key in _VERSIONS if info.get(key)), "")
    return Stamp(int(info["size"] or 0), version)


def explained(path: str, error: BaseException) -> ShardError:
    """Return the error to raise in place of an error of a file system.

    Args:
        path: The file.
        error: The error of the file system.
    """
    default = "A file of the dataset could not be read.", "Try to read it by itself."
    problem, do = next(((problem, do) for kind, problem, do in _REASONS if isinstance(error, kind)), default)
    reason = without_secrets(f"{type(error).__name__}: {error}", path)
    return ShardError(f"{problem} Got {path}: {reason}. {do}")


DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)
"""The errors of reading a compressed file that is damaged or incomplete."""

_REASONS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str, str], ...] = (
    (FileNotFoundError, "A file of the dataset is missing.", "Check the path, or leave the file out."),
    (IsADirectoryError, "A folder was given in place of files.", "Pass a pattern, such as folder/*."),
    (PermissionError, "A file of the dataset may not be read.", "See who may, and what the credentials allow."),
    (ImportError, "A URL needs a package that is not installed.", "Install pa-data[fsspec], and s3fs for s3://."),
    (DAMAGED, "A file ends too early, or is damaged.", "Copy or write the file again."),
    (
        ValueError,
        "A URL is not known.",
        "Check how it begins: a URL that fsspec knows is for example s3://BUCKET/FILE.",
    ),
)
