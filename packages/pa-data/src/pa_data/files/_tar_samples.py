"""A reader of tar archives in which files with one name and several endings are a sample, as WebDataset has them."""

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
    """A sample of a tar archive.

    Attributes:
        key: The name that its files have in common, up to the first dot, with the folders before it.
        files: The content of each file by what follows that dot, such as ``"jpg"`` or ``"seg.png"``.
    """

    key: str
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class TarSamples:
    """Reads tar archives as WebDataset writes them: files that follow each other and have one name are a sample.

    The name ends at the first dot; what follows tells the files of a sample apart, such as ``0001.jpg`` and
    ``0001.cls``. Files whose name begins with a dot are left out. What the bytes mean is up to ``transform`` of
    `ShardedFiles`. Where the files begin is found by reading the headers of each archive once; see ``index`` there.

    Example:
        >>> import io, tarfile, tempfile
        >>> from pa_data.files import ShardedFiles
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
        """Return the number of samples of an archive."""
        return len(_members(file)["sample_ends"])

    def open(self, file: ShardFile) -> _TarShard:
        """Open an archive."""
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
    return file.index("tar-samples-v1", lambda: _find_members(file))


def _find_members(file: ShardFile) -> Arrays:
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
    """A header, which is only missing after the empty block that ends an archive.

    ``tarfile`` itself treats anything that is not a header as the end, and so leaves out the rest of a damaged archive.
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
    match = _NAME.fullmatch(name)
    return (name, "") if match is None else (match[1], match[2] or "")


def _bad(file: ShardFile, given: str) -> ShardError:
    return ShardError(
        f"The files of a sample are next to each other in a tar archive, each once. Got {file.path}: {given}. Write "
        "the archive again, sorted by name."
    )
