"""One file of a dataset as readers see it: any part of it, its index, and what was decoded of it."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, Protocol, TypeVar, cast

from pa_data.errors import ShardError, safe_cause
from pa_data.files._cache import KeptPieces, Piece
from pa_data.files._file_index import Arrays, IndexFolder
from pa_data.files._file_systems import DAMAGED, Stamp, explained, is_url, names_of, remote, stamp_of

__all__ = ["ByteSource", "OpenShard", "ShardFile", "ShardReader", "shard_files"]

_SampleT_co = TypeVar("_SampleT_co", covariant=True)

_PieceT = TypeVar("_PieceT", bound=Piece)
_BLOCK = 1 << 20
_MOST_DECOMPRESSED = 1 << 30
_COMPRESSED: Mapping[str, Callable[[BinaryIO], gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".tgz": lambda file: gzip.GzipFile(fileobj=file),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
}
_UNKNOWN = (".zst", ".zstd", ".lz4", ".snappy", ".br", ".zip", ".7z")


class ByteSource(Protocol):
    """An open file of which any part can be read."""

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes ``[start, stop)``; fewer where the file ends."""
        ...


class ShardFile:
    """One file of a dataset, as its reader sees it; made by `ShardedFiles`, or by you to try a reader.

    Args:
        path: The path or the URL.
        name: The name within the folder that all files of the dataset are in; by default without any folder.
        options: What the file system of a URL is made with.

    Attributes:
        path: The path or the URL.
        name: The name within the folder that all files of the dataset are in.
        options: What the file system of a URL is made with.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from pa_data.files import TextLines
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = Path(folder.name, "a.txt")
        >>> _ = path.write_text("one, two")
        >>> file = ShardFile(str(path))
        >>> file.source().read(5, 8), TextLines().count(file)
        (b'two', 1)
        >>> folder.cleanup()
    """

    def __init__(self, path: str, name: str | None = None, *, options: Mapping[str, Any] | None = None) -> None:
        self.path: str = path
        self.name: str = PurePosixPath(path).name if name is None else name
        self.options: Mapping[str, Any] = options or {}
        self._pieces = KeptPieces(1 << 28)
        self._index_folder: IndexFolder | None = None
        self._in_memory: dict[str, Arrays] = {}

    @cached_property
    def _stamp(self) -> Stamp:
        """What the file looked like when it was first looked at."""
        return stamp_of(self.path, self.options)

    @property
    def size(self) -> int:
        """The number of bytes of the file, as it is."""
        return self._stamp.size

    @property
    def is_compressed(self) -> bool:
        """Whether its bytes can only be had by decompressing all that come before."""
        return self._ending in _COMPRESSED

    @property
    def _ending(self) -> str:
        return PurePosixPath(self.path).suffix.lower()

    @property
    def has_index_in_memory(self) -> bool:
        """Whether the whole file was read to find its samples, and will be when the script is started again."""
        return bool(self._in_memory)

    def source(self) -> ByteSource:
        """Open the file for reading any part of it.

        A compressed file is decompressed whole, and held in memory while it is in use.

        Raises:
            ShardError: It is missing or damaged, or holds too much to be decompressed.
        """
        if self.is_compressed:
            return _Decompressed(self)
        return _RemoteBytes(self) if is_url(self.path) else _LocalBytes(self)

    def open(self, *, reads_all: bool = False) -> BinaryIO:
        """Open the file as it is, compressed or not, for reading and seeking.

        Args:
            reads_all: Whether to fetch from a store ahead of what is read, rather than just that.

        Raises:
            ShardError: It is missing.
        """
        with self.explaining():
            if not is_url(self.path):
                return Path(self.path).open("rb")
            files, name = remote(self.path, self.options)
            return files.open(name, "rb", cache_type="readahead" if reads_all else "none")

    @contextmanager
    def stream(self) -> Generator[IO[bytes]]:
        """Open the file for reading it from its beginning to its end, decompressed.

        Raises:
            ShardError: It is missing or damaged, or compressed in an unknown way.
        """
        if self._ending in _UNKNOWN:
            raise ShardError(
                f"A file is compressed in a way that cannot be read here. Got {self.path}, expected an uncompressed "
                f"file, or one of {', '.join(_COMPRESSED)}. Decompress it: only then can samples be read without "
                "what comes before them."
            )
        with self.open(reads_all=True) as file, self.explaining():
            if self.is_compressed:
                with _COMPRESSED[self._ending](file) as decompressed:
                    most = max(self._pieces.max_bytes, _MOST_DECOMPRESSED)
                    yield cast("IO[bytes]", _Limited(self.path, cast("IO[bytes]", decompressed), most))
            else:
                yield file

    def index(self, kind: str, make: Callable[[], Arrays]) -> Arrays:
        """Return arrays that say where the samples are, from where they are kept, or made.

        Args:
            kind: The versioned name of what ``make`` does, which never changes.
            make: Reads the file, and returns arrays of one dimension, int64 or uint8, by name.

        Raises:
            ShardError: As ``stream``.
        """
        if self._index_folder is not None:
            return self._index_folder.get(self.path, kind, self._stamp, make)
        if kind not in self._in_memory:
            self._in_memory[kind] = make()
        return self._in_memory[kind]

    def piece(self, key: object, make: Callable[[], _PieceT]) -> _PieceT:
        """Return a part of the file that is kept in memory, together with the parts of all files, while there is room.

        Args:
            key: What the part is known by within the file.
            make: Reads the part.
        """
        return self._pieces.get((self.path, key), make)

    @contextmanager
    def explaining(self) -> Generator[None]:
        """Within the context, errors of reading say which file it was."""
        try:
            yield
        except (OSError, *DAMAGED) as error:
            raise explained(self.path, error) from safe_cause(error, self.path)

    def check_unchanged(self) -> None:
        """Raise an error for a file that has changed since it was first looked at.

        Raises:
            ShardError: It has changed.
        """
        before = self._stamp
        now = stamp_of(self.path, self.options)
        if now != before:
            raise ShardError(
                f"A file has changed since its samples were counted. Got {self.path}, {self.size} bytes before and "
                f"{now.size} bytes now. Restart the run, so that its samples are counted again."
            )


class _LocalBytes:
    """Reads without a position, so that processes that were forked can share it."""

    def __init__(self, shard: ShardFile) -> None:
        self._shard = shard
        with shard.explaining():
            self._descriptor = os.open(shard.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))

    def read(self, start: int, stop: int) -> bytes:
        try:
            first = self._read_some(start, stop)
            parts, position = [first], start + len(first)
            while position < stop and parts[-1]:  # a system reads less than 2 GiB at once
                parts.append(self._read_some(position, stop))
                position += len(parts[-1])
        except OSError as error:
            raise explained(self._shard.path, error) from safe_cause(error, self._shard.path)
        return first if len(parts) == 1 else b"".join(parts)

    def _read_some(self, start: int, stop: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(self._descriptor, stop - start, start)
        os.lseek(self._descriptor, start, os.SEEK_SET)
        return os.read(self._descriptor, stop - start)

    def __del__(self) -> None:
        if "_descriptor" in vars(self):
            os.close(self._descriptor)


class _RemoteBytes:
    """Reads a file in blocks, which are kept while there is room: each request to a store takes some milliseconds."""

    def __init__(self, shard: ShardFile) -> None:
        self._shard = shard
        self._files, self._name = remote(shard.path, shard.options)

    def read(self, start: int, stop: int) -> bytes:
        numbers = range(start // _BLOCK, -(-stop // _BLOCK))
        blocks = [self._shard.piece(number, partial(self._fetch, number)) for number in numbers]
        begin = numbers.start * _BLOCK
        if len(blocks) == 1:
            return bytes(blocks[0][start - begin : stop - begin])
        return b"".join(blocks)[start - begin : stop - begin]

    def _fetch(self, number: int) -> memoryview:
        with self._shard.explaining():
            stop = min((number + 1) * _BLOCK, self._shard.size)
            return memoryview(self._files.cat_file(self._name, number * _BLOCK, stop))


class _Limited:
    """A decompressed file that is read up to a limit: a small file may hold any number of zeros."""

    def __init__(self, path: str, file: IO[bytes], most: int) -> None:
        self._path, self._file, self._most = path, file, most
        self._left = most

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(self._left + 1 if size < 0 else min(size, self._left + 1))
        self._left -= len(block)
        if self._left < 0:
            raise ShardError(
                "A compressed file holds more than may be decompressed, as all of it is held in memory. Got "
                f"{self._path}, more than {self._most} bytes when it is decompressed. Decompress it or divide it "
                "into several files; or pass a larger cache_bytes to ShardedFiles."
            )
        return block


class _Decompressed:
    def __init__(self, shard: ShardFile) -> None:
        self._shard = shard

    def read(self, start: int, stop: int) -> bytes:
        return bytes(self._shard.piece("decompressed", self._whole)[start:stop])

    def _whole(self) -> memoryview:
        with self._shard.stream() as file:
            return memoryview(file.read())


def shard_files(
    paths: Sequence[str], pieces: KeptPieces, index_folder: IndexFolder | None, options: Mapping[str, Any]
) -> tuple[ShardFile, ...]:
    """Return the files of a dataset.

    Args:
        paths: The paths and URLs.
        pieces: What is kept in memory of all files.
        index_folder: Where indexes are kept; None keeps them in memory.
        options: What the file system of URLs is made with.
    """
    files = tuple(ShardFile(path, name, options=options) for path, name in zip(paths, names_of(paths), strict=True))
    for file in files:
        vars(file).update(_pieces=pieces, _index_folder=index_folder)
    return files


class OpenShard(Protocol[_SampleT_co]):
    """The samples of one file; a sequence such as an array will do.

    If it has a method ``close``, that is called when the file is no longer in use.
    """

    def __getitem__(self, row: int, /) -> _SampleT_co:
        """Return one sample of the file, counted from 0."""
        ...


class ShardReader(Protocol[_SampleT_co]):
    """Reads the samples of files of one kind, in any order.

    Example:
        >>> import numpy as np
        >>> class NumpyRows:
        ...     def count(self, file: ShardFile) -> int:
        ...         return len(self.open(file))
        ...     def open(self, file: ShardFile) -> np.ndarray:
        ...         return np.load(file.path, mmap_mode="r")
    """

    def count(self, file: ShardFile) -> int:
        """Return the number of samples of a file."""
        ...

    def open(self, file: ShardFile) -> OpenShard[_SampleT_co]:
        """Open a file; it is kept open while its samples are read."""
        ...
