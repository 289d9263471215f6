"""A file of a dataset for its reader: any part of it, its index, and its decoded parts."""

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
    """An open file from which any range of bytes can be read; ``ShardFile.source`` returns it.

    Use it as a type in your own reader. You need not implement it. It has no current position, so forked processes can
    share it, and it closes its file when it is deleted.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from pa_data.files import ByteSource, ShardFile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "a.txt")
        ...     _ = path.write_text("first, second")
        ...     source: ByteSource = ShardFile(str(path)).source()
        ...     source.read(0, 5)
        b'first'
    """

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes ``[start, stop)`` of the file, or fewer at its end.

        You call it in a reader to read a sample, any number of times and in any order. Positions of a compressed file
        count decompressed bytes. From an object store, blocks of 1 MiB are fetched and cached, so neighboring reads are
        fast.

        Args:
            start: The position of the first byte, from 0.
            stop: The position after the last byte, at least ``start``.

        Returns:
            The bytes; fewer than ``stop - start``, or none, if the file ends earlier.

        Raises:
            ShardError: The file cannot be read.

        Example:
            >>> import tempfile
            >>> from pathlib import Path
            >>> from pa_data.files import ShardFile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = Path(folder, "a.txt")
            ...     _ = path.write_text("first, second")
            ...     ShardFile(str(path)).source().read(7, 13)
            b'second'
        """
        ...


class ShardFile:
    """Gives a reader access to a file of a dataset, on disk or in an object store, compressed or not.

    ``ShardedFiles`` creates an object for each file, and passes it to ``count`` and ``open`` of its reader. Create an
    object yourself to try out a reader. Creating it reads nothing. In a reader, call ``source`` to read single samples,
    ``stream`` to read the whole file once, ``index`` to keep the positions of samples, and ``piece`` to cache decoded
    parts.

    Files that end with ``.gz``, ``.tgz``, ``.bz2`` or ``.xz`` are decompressed by ``source`` and ``stream``.

    Args:
        path: The path of the file, or a URL that fsspec supports, for example ``s3://bucket/train.tar``.
        name: The name of the file within the common folder of the dataset. The default is the last component of
            ``path``.
        options: The arguments for the file system of a URL, for example credentials, in the form that fsspec accepts.
            By default there are none.

    Attributes:
        path: The path or the URL of the file.
        name: The name of the file within the common folder of the dataset, for example ``"train/a.jsonl"``. Saved
            states identify the files by these names, so a dataset may be moved.
        options: The arguments for the file system of a URL.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from pa_data.files import ShardFile, TextLines
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = Path(folder.name, "a.txt")
        >>> _ = path.write_text("first, second")
        >>> file = ShardFile(str(path))
        >>> file.source().read(7, 13), TextLines().count(file)
        (b'second', 1)
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
        """The size and the version of the file when it was first read."""
        return stamp_of(self.path, self.options)

    @property
    def size(self) -> int:
        """The number of bytes of the file, an integer; compressed bytes if it is compressed.

        It is read on first use, and does not change afterwards, even if the file does; see ``check_unchanged``.

        Raises:
            ShardError: The file is missing or cannot be read.
        """
        return self._stamp.size

    @property
    def is_compressed(self) -> bool:
        """Whether the file is compressed, so that its bytes can only be read from the beginning.

        True if the name ends with ``.gz``, ``.tgz``, ``.bz2`` or ``.xz``. The file itself is not read.
        """
        return self._ending in _COMPRESSED

    @property
    def _ending(self) -> str:
        """The extension of the file."""
        return PurePosixPath(self.path).suffix.lower()

    @property
    def has_index_in_memory(self) -> bool:
        """Whether ``index`` has computed arrays that are kept in memory only.

        It is False at first, and stays False if ``ShardedFiles`` has an ``index`` folder. ``ShardedFiles`` reads it to
        decide whether to warn that all files will be read again when the script starts the next time.
        """
        return bool(self._in_memory)

    def source(self) -> ByteSource:
        """Open the file for reading any range of bytes.

        You call it in the ``open`` method of a reader, and read each sample from the result. A compressed file is
        decompressed completely at the first read, and kept in memory while it is in use. To read the whole file once,
        ``stream`` needs less memory.

        Returns:
            An object with ``read(start, stop)``, a ``ByteSource``. You need not close it.

        Raises:
            ShardError: The file is missing. Reading raises it for a damaged file, or if a compressed file takes more
                than 1 GiB decompressed (or more than the ``cache_bytes`` of the dataset, if that is larger).

        Example:
            >>> import gzip, tempfile
            >>> from pathlib import Path
            >>> from pa_data.files import ShardFile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = Path(folder, "a.txt.gz")
            ...     _ = path.write_bytes(gzip.compress(b"first, second"))
            ...     ShardFile(str(path)).source().read(7, 13)
            b'second'
        """
        if self.is_compressed:
            return _Decompressed(self)
        return _RemoteBytes(self) if is_url(self.path) else _LocalBytes(self)

    def open(self, *, reads_all: bool = False) -> BinaryIO:
        """Open the file for reading and seeking, without decompressing it.

        You call it in a reader to pass a file object to a library, for example pyarrow. For ranges of bytes, ``source``
        is simpler.

        Args:
            reads_all: Whether to read ahead from an object store, for reading the whole file. The default, False,
                fetches only the requested bytes. For a file on disk it has no effect.

        Returns:
            A file that is open in binary mode. The caller closes it.

        Raises:
            ShardError: The file is missing, or its URL is not supported.

        Example:
            >>> import tempfile
            >>> from pathlib import Path
            >>> from pa_data.files import ShardFile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = Path(folder, "a.txt")
            ...     _ = path.write_text("first, second")
            ...     with ShardFile(str(path)).open() as file:
            ...         _ = file.seek(7)
            ...         file.read()
            b'second'
        """
        with self.explaining():
            if not is_url(self.path):
                return Path(self.path).open("rb")
            files, name = remote(self.path, self.options)
            return files.open(name, "rb", cache_type="readahead" if reads_all else "none")

    @contextmanager
    def stream(self) -> Generator[IO[bytes]]:
        r"""Open the file for reading it once from the beginning to the end, decompressed.

        You use this context manager in the function that you pass to ``index``, to find the samples in the file. For
        single samples, use ``source``.

        Yields:
            A file that is open in binary mode, and is closed when the block ends. Read it only forward. For a
            compressed file, its only method is ``read(size)``.

        Raises:
            ShardError: The file is missing or damaged, or its compression is not supported. Reading also raises it if a
                compressed file takes more than 1 GiB decompressed (or more than the ``cache_bytes`` of the dataset, if
                that is larger).

        Example:
            >>> import gzip, tempfile
            >>> from pathlib import Path
            >>> from pa_data.files import ShardFile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = Path(folder, "a.txt.gz")
            ...     _ = path.write_bytes(gzip.compress(b"first\nsecond\n"))
            ...     with ShardFile(str(path)).stream() as file:
            ...         file.read().count(b"\n")
            2
        """
        if self._ending in _UNKNOWN:
            raise ShardError(
                f"A file is compressed in a way that cannot be read here. Got {self.path}, expected an uncompressed "
                f"file, or one of {', '.join(_COMPRESSED)}. Decompress it: only then can samples be read without "
                "the data before them."
            )
        with self.open(reads_all=True) as file, self.explaining():
            if self.is_compressed:
                with _COMPRESSED[self._ending](file) as decompressed:
                    most = max(self._pieces.max_bytes, _MOST_DECOMPRESSED)
                    yield cast("IO[bytes]", _Limited(self.path, cast("IO[bytes]", decompressed), most))
            else:
                yield file

    def index(self, kind: str, make: Callable[[], Arrays]) -> Arrays:
        """Return arrays with the positions of the samples, from the index folder, or computed by a function.

        You call it in ``count`` and ``open`` of a reader that must read a file to find its samples. If ``ShardedFiles``
        has an ``index`` folder, the arrays are computed once and kept on disk until the file changes; otherwise each
        process computes them once.

        Args:
            kind: The versioned name of the algorithm in ``make``, for example ``"records-v1"``. Choose a new name
                whenever the arrays would differ.
            make: A function that reads the file, and returns one-dimensional NumPy arrays of int64 or uint8 by name. It
                is called at most once.

        Returns:
            The arrays by name. They may be mapped from a file on disk, so do not write to them.

        Raises:
            ShardError: The file is missing or damaged.

        Example:
            >>> import tempfile
            >>> from pathlib import Path
            >>> import numpy as np
            >>> from pa_data.files import ShardFile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = Path(folder, "a.bin")
            ...     _ = path.write_bytes(bytes(12))
            ...     file = ShardFile(str(path))
            ...     file.index("records-v1", lambda: {"begins": np.arange(0, file.size, 4)})["begins"].tolist()
            [0, 4, 8]
        """
        if self._index_folder is not None:
            return self._index_folder.get(self.path, kind, self._stamp, make)
        if kind not in self._in_memory:
            self._in_memory[kind] = make()
        return self._in_memory[kind]

    def piece(self, key: object, make: Callable[[], _PieceT]) -> _PieceT:
        """Return a decoded part of the file, from a cache that all files of the dataset share.

        You call it in a reader that decodes several samples at once, for example a row group. Each process has its own
        cache, as large as the ``cache_bytes`` of ``ShardedFiles``, which drops the parts that have been unused for the
        longest time. A ``ShardFile`` that you create yourself has a cache of 256 MiB.

        Args:
            key: The key of the part within the file, any hashable object.
            make: A function that decodes the part. It is called if the part is not in the cache. The result must have
                ``nbytes``, its size in bytes, as arrays, pyarrow tables and ``memoryview`` objects do.

        Returns:
            The part. It is shared, so do not change it.

        Example:
            >>> import numpy as np
            >>> from pa_data.files import ShardFile
            >>> file = ShardFile("a.bin")
            >>> first = file.piece("rows 0 to 9", lambda: np.arange(10))
            >>> file.piece("rows 0 to 9", lambda: np.arange(10)) is first
            True
        """
        return self._pieces.get((self.path, key), make)

    @contextmanager
    def explaining(self) -> Generator[None]:
        """Turn read errors within the block into a ``ShardError`` that names the file.

        You use this context manager in a reader, around calls to a library that reads the file. The methods of this
        class use it themselves.

        Raises:
            ShardError: The block has raised an ``OSError``, or an error about damaged compressed data (``EOFError``,
                ``zlib.error`` or ``lzma.LZMAError``). Any other error is raised unchanged.

        Example:
            >>> from pa_data.errors import ShardError
            >>> from pa_data.files import ShardFile
            >>> try:
            ...     with ShardFile("no/such/file.bin").explaining():
            ...         open("no/such/file.bin")
            ... except ShardError as error:
            ...     print(str(error).partition(" Got")[0])
            A file of the dataset is missing.
        """
        try:
            yield
        except (OSError, *DAMAGED) as error:
            raise explained(self.path, error) from safe_cause(error, self.path)

    def check_unchanged(self) -> None:
        """Raise an error if the file has changed since this object first read it.

        ``ShardedFiles`` calls it before it counts or opens a file, so a reader need not call it. The first call only
        records the size of the file and its version, which is the time of its last change or, in an object store, its
        tag.

        Raises:
            ShardError: The size or the version of the file has changed, or the file is missing.

        Example:
            >>> import tempfile
            >>> from pathlib import Path
            >>> from pa_data.errors import ShardError
            >>> from pa_data.files import ShardFile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = Path(folder, "a.txt")
            ...     _ = path.write_text("first")
            ...     file = ShardFile(str(path))
            ...     file.check_unchanged()
            ...     _ = path.write_text("first, second")
            ...     try:
            ...         file.check_unchanged()
            ...     except ShardError as error:
            ...         print(str(error).partition(" Got")[0])
            A file has changed since its samples were counted.
        """
        before = self._stamp
        now = stamp_of(self.path, self.options)
        if now != before:
            raise ShardError(
                f"A file has changed since its samples were counted. Got {self.path}, {self.size} bytes before and "
                f"{now.size} bytes now. Restart the run, so that its samples are counted again."
            )


class _LocalBytes:
    """Reads a file without a position, so that forked processes can share it."""

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
    """Reads a file in blocks, which are cached because each request to a store takes some milliseconds."""

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
    """A decompressed file with a size limit, since a small file may contain any number of zeros."""

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
    """A compressed file, decompressed in memory."""

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
        pieces: The cache of all files.
        index_folder: The folder of the indexes, or None to keep them in memory.
        options: The arguments for the file system of URLs.
    """
    files = tuple(ShardFile(path, name, options=options) for path, name in zip(paths, names_of(paths), strict=True))
    for file in files:
        vars(file).update(_pieces=pieces, _index_folder=index_folder)
    return files


class OpenShard(Protocol[_SampleT_co]):
    """The samples of an open file; any sequence, for example an array, is an open shard.

    ``ShardReader.open`` returns it, and ``ShardedFiles`` reads each sample with ``shard[row]``, where ``row`` is from 0
    to one less than the number that ``ShardReader.count`` returned. Your class need not derive from this class. If it
    has a ``close`` method, that method is called without arguments when the file is no longer in use. Raise a
    ``ShardError`` for a sample that cannot be read.

    Example:
        >>> from pa_data.files import OpenShard
        >>> class Squares:
        ...     def __getitem__(self, row: int) -> int:
        ...         return row * row
        ...     def close(self) -> None:
        ...         print("closed")
        >>> shard: OpenShard[int] = Squares()
        >>> shard[3]
        9
    """

    def __getitem__(self, row: int, /) -> _SampleT_co:
        """Return a sample of the file, counted from 0."""
        ...


class ShardReader(Protocol[_SampleT_co]):
    """A reader of files of a certain kind, whose samples can be read in any order.

    Implement it for your own format, and pass an object of your class to ``ShardedFiles``. The methods ``count`` and
    ``open`` are enough, and the class need not derive from this class. The readers ``JsonLines``, ``TextLines``,
    ``Parquet`` and ``TarSamples`` read common formats. The object must be picklable if workers are started with
    ``"spawn"`` or ``"forkserver"``.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from pa_data.files import ShardedFiles, ShardFile
        >>> class NumpyRows:
        ...     def count(self, file: ShardFile) -> int:
        ...         return len(self.open(file))
        ...     def open(self, file: ShardFile) -> np.ndarray:
        ...         return np.load(file.path, mmap_mode="r")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(f"{folder}/a.npy", np.arange(6).reshape(3, 2))
        ...     ShardedFiles(f"{folder}/*.npy", NumpyRows())[1].tolist()
        [2, 3]
    """

    def count(self, file: ShardFile) -> int:
        """Return the number of samples of a file; implement it in your reader.

        ``ShardedFiles`` calls it for each file when it is created, on every process. If you pass ``counts``, it calls
        the method only when a file is first opened, to compare the numbers. The number must be the same whenever the
        same file is counted.

        Args:
            file: The file. ``file.index`` keeps positions that are slow to find, for later calls and for ``open``.

        Returns:
            The number of samples, which may be 0.

        Raises:
            ShardError: The file is missing, damaged or of the wrong kind. The methods of ``file`` raise it for you;
                raise it yourself for a wrong format.

        Example:
            >>> import tempfile
            >>> from pathlib import Path
            >>> from pa_data.files import ShardFile
            >>> class Bytes:
            ...     def count(self, file: ShardFile) -> int:
            ...         return file.size
            ...     def open(self, file: ShardFile) -> bytes:
            ...         return file.source().read(0, file.size)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     _ = Path(folder, "a.bin").write_bytes(b"abc")
            ...     Bytes().count(ShardFile(f"{folder}/a.bin"))
            3
        """
        ...

    def open(self, file: ShardFile) -> OpenShard[_SampleT_co]:
        """Open a file, which stays open while its samples are read; implement it in your reader.

        ``ShardedFiles`` calls it in each process or worker when it needs the first sample of the file, and again if the
        file was closed in between. Open files of a process are not shared with other processes.

        Args:
            file: The file. ``file.source().read(start, stop)`` returns a range of its bytes, even from an object store.
                If you decode several samples at once, ``file.piece(key, make)`` returns the result of ``make()`` from a
                cache. ``file.path`` is its path or URL.

        Returns:
            An object that returns sample ``n`` for the index ``n``, counted from 0. If it has a ``close`` method, this
            method is called when the file is no longer in use.

        Raises:
            ShardError: The file is missing, damaged or of the wrong kind. The methods of ``file`` raise it for you;
                raise it yourself for a wrong format.

        Example:
            >>> import tempfile
            >>> from pathlib import Path
            >>> from pa_data.files import ShardFile
            >>> class Bytes:
            ...     def count(self, file: ShardFile) -> int:
            ...         return file.size
            ...     def open(self, file: ShardFile) -> bytes:
            ...         return file.source().read(0, file.size)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     _ = Path(folder, "a.bin").write_bytes(b"abc")
            ...     Bytes().open(ShardFile(f"{folder}/a.bin"))[2]
            99
        """
        ...
