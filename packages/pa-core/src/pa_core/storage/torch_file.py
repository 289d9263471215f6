"""Files that torch.save wrote, checked before torch.load reads them: as they were written, no larger than on disk."""

from __future__ import annotations

import errno
import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from pa_core.storage.pickled_part import MisfitInFileError, StorageInFile, check_pickled_part

__all__ = ["find_damage"]

_CHUNK = 1 << 20  # bytes
_START_OF_RECORD = b"PK\x03\x04"
_LENGTHS_IN_HEADER = struct.Struct("<26xHH")  # of a record's name, and of what is between it and the content
_IS_DIRECTORY = 0x10
_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C  # of files from before torch wrote archives


def find_damage(file: BinaryIO, *, of_tensors: bool = True) -> str | None:
    """Say what is wrong with a file, if anything is; nothing in it is run, and no more memory taken than it has bytes.

    ``torch.load`` ignores the checksums in a file, and makes objects of any size that the pickled part mentions.
    Whether that has only what may be loaded without running code is left to it.

    Args:
        file: Open for reading; it is left at its beginning.
        of_tensors: Whether what tensors hold is compared with its checksums, which reads the whole file.

    Raises:
        OSError: The file cannot be read.

    Example:
        >>> import torch
        >>> file = io.BytesIO()
        >>> torch.save(torch.ones(100), file)
        >>> find_damage(file)
        >>> content = bytearray(file.getvalue())
        >>> content[content.index(struct.pack("<f", 1.0)) + 50] ^= 1
        >>> find_damage(io.BytesIO(content))
        'archive/data/0 is not as it was written: its checksum differs'
    """
    size = file.seek(0, os.SEEK_END)
    try:
        file.seek(0)
        if file.read(len(_START_OF_RECORD)) == _START_OF_RECORD:
            _check_archive(file, size, of_tensors=of_tensors)
        else:
            _check_sequence(file)
    except MisfitInFileError as error:
        return str(error)
    except OSError as error:
        if error.errno not in {None, errno.EINVAL}:  # what is raised for a place before the beginning
            raise
        return f"{type(error).__name__}: {error}"
    except MemoryError:
        raise
    except Exception as error:  # what becomes of a damaged directory or pickle is not limited to some kinds of error
        return f"{type(error).__name__}: {error}"
    finally:
        file.seek(0)
    return None


def _check_archive(file: BinaryIO, size: int, *, of_tensors: bool) -> None:
    try:
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
    except zipfile.BadZipFile as error:
        raise MisfitInFileError("the directory at its end is missing or damaged") from error
    _require_plain_records(records, size)
    folder = records[0].filename.partition("/")[0]
    lengths = {record.filename: record.file_size for record in records}

    def check_storage(storage: StorageInFile) -> None:
        length = lengths.get(f"{folder}/data/{storage.key}")
        if length is None or length < storage.nbytes:
            raise MisfitInFileError(f"storage {storage.key} needs {storage.nbytes} bytes and has {length or 0}")

    has_checksums = any(record.CRC for record in records)  # unless they were switched off in torch.serialization
    for record in records:
        is_tensor = record.filename.startswith(f"{folder}/data/")
        if has_checksums and (of_tensors or not is_tensor):
            _require_checksum(file, record)
    (pickled,) = (record for record in records if record.filename == f"{folder}/data.pkl")
    check_pickled_part(io.BytesIO(b"".join(_content(file, pickled))), check_storage)


def _require_plain_records(records: list[zipfile.ZipInfo], size: int) -> None:
    """Raise an error for directories, compressed or overlapping records, and two of a name; torch writes none."""
    if not records:
        raise MisfitInFileError("it is an empty archive")
    directories = [one.filename for one in records if one.is_dir() or one.external_attr & _IS_DIRECTORY]
    if directories:  # of which torch would read nothing, and leave the memory of the tensor as it is
        raise MisfitInFileError(f"{directories[0]} is a directory")
    compressed = [one.filename for one in records if one.compress_type != zipfile.ZIP_STORED]
    if compressed:
        raise MisfitInFileError(f"{compressed[0]} is compressed, which torch.save does not do")
    if sum(one.file_size for one in records) > size:
        raise MisfitInFileError("its records together are larger than the file")
    if len({one.filename.lower() for one in records}) != len(records):  # torch finds them in any case
        raise MisfitInFileError("two of its records have the same name")


def _require_checksum(file: BinaryIO, record: zipfile.ZipInfo) -> None:
    checksum = 0
    for chunk in _content(file, record):
        checksum = zlib.crc32(chunk, checksum)
    if checksum != record.CRC:
        raise MisfitInFileError(f"{record.filename} is not as it was written: its checksum differs")


def _content(file: BinaryIO, record: zipfile.ZipInfo) -> Iterator[bytes]:
    """The bytes that torch reads: zipfile would compare them with a checksum that some files do not have."""
    file.seek(record.header_offset)
    header = file.read(_LENGTHS_IN_HEADER.size)
    if not header.startswith(_START_OF_RECORD):
        raise MisfitInFileError(f"{record.filename} does not begin where it should")
    file.seek(sum(_LENGTHS_IN_HEADER.unpack(header)), os.SEEK_CUR)
    missing = record.file_size
    while missing:
        chunk = file.read(min(_CHUNK, missing))
        if not chunk:
            raise MisfitInFileError(f"{record.filename} lacks its last {missing} bytes")
        missing -= len(chunk)
        yield chunk


def _check_sequence(file: BinaryIO) -> None:
    """Check a file in torch's earlier format: pickles one after the other, then the storages; it has no checksums."""
    file.seek(0)
    content = io.BytesIO(file.read())
    if check_pickled_part(content) != _MAGIC_NUMBER:
        return  # not torch's at all, as torch.load will say
    storages: dict[str, StorageInFile] = {}

    def note(storage: StorageInFile) -> None:
        storages[storage.key] = storage

    for _ in ("version", "machine", "object"):
        check_pickled_part(content, note)
    keys: list[Any] = check_pickled_part(content)
    left = content.getbuffer().nbytes - content.tell()
    needed = sum(8 + storages[str(key)].nbytes for key in keys)
    if needed != left or len(keys) != len(storages):
        raise MisfitInFileError(f"its storages need {needed} bytes, of which it has {left}")
