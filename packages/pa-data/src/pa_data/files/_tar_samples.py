"""A reader of tar archives in which files with the same name and different endings are a sample, as in WebDataset."""

from __future__ import annotations

import re
import tarfile
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
from typing_extensions import override

from pa_data.errors import ShardError
from pa_data.files._file_index import Arrays
from pa_data.files._shard_file import ShardFile

__all__ = ["TarSample", "TarSamples"]

_NAME = re.compile(r"((?:.*/)?[^/.]+)(?:\.([^/]*))?")


@dataclass(frozen=True)
class TarSample:
    """The files of a sample in a tar archive.

    ``TarSamples`` returns it for each sample. Decode the bytes in the ``transform`` of ``ShardedFiles``, since objects
    of this class cannot be collated into batches.

    Attributes:
        key: The common name of the files, up to the first dot, including folders, for example ``"train/0001"``.
        files: The content of each file as bytes, by the part of its name after that dot, for example ``"jpg"`` or
            ``"seg.png"``.

    Example:
        >>> from pa_data.files import TarSample
        >>> sample = TarSample("train/0001", {"txt": b"a cat", "cls": b"3"})
        >>> sample.files["txt"].decode(), int(sample.files["cls"])
        ('a cat', 3)
    """

    key: str
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class TarSamples:
    """Reads tar archives in the format of WebDataset: consecutive files with the same name form a sample.

    Pass it to ``ShardedFiles`` as the reader. The name ends at the first dot, and the rest distinguishes the files of a
    sample, for example ``0001.jpg`` and ``0001.cls``. Files whose name begins with a dot are skipped. A sample is a
    ``TarSample`` with the bytes of its files; pass ``transform`` to ``ShardedFiles`` to decode them. The headers of
    each archive are read once to find the files; pass ``index`` to ``ShardedFiles`` to keep the positions.

    Example:
        >>> import io, tarfile, tempfile
        >>> from pa_data.files import ShardedFiles, TarSamples
        >>> folder = tempfile.TemporaryDirectory()
        >>> with tarfile.open(f"{folder.name}/a.tar", "w") as archive:
        ...     for name in ("cat.txt", "cat.cls"):
        ...         archive.addfile(about := tarfile.TarInfo(name), io.BytesIO(b""))
        >>> ShardedFiles(f"{folder.name}/*.tar", TarSamples())[0]
        TarSample(key='cat', files={'txt': b'', 'cls': b''})
        >>> folder.cleanup()
    """

    name: ClassVar[str] = "tar-samples-v1"

    def count(self, file: ShardFile) -> int:
        """Return the number of samples of an archive.

        ``ShardedFiles`` calls it, so you need not. The headers of the archive are read once to find the files.

        Args:
            file: The archive, on disk or in an object store, compressed or not.

        Returns:
            The number of samples, which may be 0. Files with the same name up to the first dot count once.

        Raises:
            ShardError: The archive is missing or damaged, or the files of a sample are not next to each other.

        Example:
            >>> import io, tarfile, tempfile
            >>> from pa_data.files import ShardFile, TarSamples
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     with tarfile.open(f"{folder}/a.tar", "w") as archive:
            ...         for name in ("cat.txt", "cat.cls", "dog.txt"):
            ...             archive.addfile(tarfile.TarInfo(name), io.BytesIO(b""))
            ...     TarSamples().count(ShardFile(f"{folder}/a.tar"))
            2
        """
        return len(_members(file)["sample_ends"])

    def open(self, file: ShardFile) -> _TarShard:
        """Open an archive for reading its samples in any order.

        ``ShardedFiles`` calls it, so you need not. The headers are read once to find the files, unless ``count`` has
        done so.

        Args:
            file: The archive, on disk or in an object store, compressed or not.

        Returns:
            An object that returns sample ``n``, a ``TarSample``, for the index ``n``, counted from 0.

        Raises:
            ShardError: The archive is missing or damaged, or the files of a sample are not next to each other.

        Example:
            >>> import io, tarfile, tempfile
            >>> from pa_data.files import ShardFile, TarSamples
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     with tarfile.open(f"{folder}/a.tar", "w") as archive:
            ...         for name in ("cat.txt", "dog.txt"):
            ...             archive.addfile(tarfile.TarInfo(name), io.BytesIO(b""))
            ...     TarSamples().open(ShardFile(f"{folder}/a.tar"))[1].key
            'dog'
        """
        return _TarShard(file)


class _TarShard:
    def __init__(self, file: ShardFile) -> None:
        self._members = _members(file)
        self._source = file.source()

    def __getitem__(self, row: int) -> TarSample:
        ends = self._members["sample_ends"]
        members = range(int(ends[row - 1]) if row > 0 else 0, int(ends[row]))
        begins, sizes = ([int(self._members[name][member]) for member in members] for name in ("begins", "sizes"))
        whole = self._source.read(begins[0], begins[-1] + sizes[-1])
        key, files = "", dict[str, bytes]()
        for member, begin, size in zip(members, begins, sizes, strict=True):
            key, ending = _parts(self._name(member))
            files[ending] = whole[begin - begins[0] : begin - begins[0] + size]
        return TarSample(key, files)

    def _name(self, member: int) -> str:
        ends = self._members["name_ends"]
        begin = int(ends[member - 1]) if member > 0 else 0
        return bytes(self._members["names"][begin : int(ends[member])]).decode()


def _members(file: ShardFile) -> Arrays:
    """Return the positions and names of the files in an archive."""
    return file.index("tar-samples-v1", lambda: _find_members(file))


def _find_members(file: ShardFile) -> Arrays:
    """Find the files of an archive, and the samples that they form."""
    numbers = {name: array("q") for name in ("begins", "sizes", "sample_ends", "name_ends")}
    names, seen = bytearray(), set[str]()
    key, endings = "", set[str]()
    for member in _files_of(file):
        of_member, ending = _parts(member.name)
        if of_member != key or not endings:
            if of_member in seen:
                raise _bad(file, f"{member.name}, and other files between it and the files of the same name")
            if endings:
                numbers["sample_ends"].append(len(numbers["begins"]))
            key, endings = of_member, set[str]()
            seen.add(key)
        if ending in endings:
            raise _bad(file, f"{member.name} twice")
        endings.add(ending)
        names += member.name.encode(errors="surrogateescape")
        for name, number in (("begins", member.offset_data), ("sizes", member.size), ("name_ends", len(names))):
            numbers[name].append(number)
    if endings:
        numbers["sample_ends"].append(len(numbers["begins"]))
    arrays = {name: np.array(values, np.int64) for name, values in numbers.items()}
    return {**arrays, "names": np.frombuffer(bytes(names), np.uint8)}


class _Header(tarfile.TarInfo):
    """A header of an archive; only the empty block at the end of an archive may be without a header.

    ``tarfile`` takes any block without a header for the end, and so ignores the rest of a damaged archive.
    """

    @override
    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise
            raise tarfile.ReadError(f"{error} before the end") from error


def _files_of(file: ShardFile) -> Iterator[tarfile.TarInfo]:
    """Yield the files of an archive."""
    with file.stream() as stream:
        try:
            mode: Literal["r|", "r:"] = "r|" if file.is_compressed else "r:"
            with tarfile.open(fileobj=stream, mode=mode, tarinfo=_Header) as archive:
                while (member := archive.next()) is not None:
                    vars(archive).update(members=[])  # which would grow with each of them
                    if member.isreg() and _NAME.fullmatch(member.name):
                        yield member
        except tarfile.TarError as error:
            raise ShardError(
                f"A tar archive cannot be read. Got {file.path}: {error}. Copy or write the archive again."
            ) from error


def _parts(name: str) -> tuple[str, str]:
    """Return the name of the sample of a file, and the ending that tells its files apart."""
    match = _NAME.fullmatch(name)
    return (name, "") if match is None else (match[1], match[2] or "")


def _bad(file: ShardFile, given: str) -> ShardError:
    """Return the error for an archive with files in the wrong order."""
    return ShardError(
        f"The files of a sample are next to each other in a tar archive, each once. Got {file.path}: {given}. Write "
        "the archive again, sorted by name."
    )
