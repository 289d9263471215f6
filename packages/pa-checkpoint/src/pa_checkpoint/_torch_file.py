"""Files that torch.save wrote, compared with the checksums in them before torch.load reads them."""

from __future__ import annotations

import errno
import os
import zipfile
from typing import BinaryIO

_CHUNK = 1 << 20  # bytes
_START_OF_RECORD = b"PK\x03\x04"
_IS_DIRECTORY = 0x10


def find_damage(file: BinaryIO, *, of_tensors: bool = True) -> str | None:
    """Say what is wrong with a file, if anything is; nothing in it is run.

    ``torch.load`` ignores the checksums in a file. Whether that has only what may be loaded without running code is
    left to it, and so are files from before torch wrote archives, which have no checksums.

    Args:
        file: Open for reading; it is left at its beginning.
        of_tensors: Whether what tensors hold is compared with its checksums, which reads the whole file.

    Raises:
        OSError: The file cannot be read.

    Example:
        >>> import io, struct, torch
        >>> file = io.BytesIO()
        >>> torch.save(torch.ones(100), file)
        >>> find_damage(file)
        >>> content = bytearray(file.getvalue())
        >>> content[content.index(struct.pack("<f", 1.0)) + 50] ^= 1
        >>> find_damage(io.BytesIO(content))
        "Bad CRC-32 for file 'archive/data/0'"
    """
    size = file.seek(0, os.SEEK_END)
    try:
        file.seek(0)
        if file.read(len(_START_OF_RECORD)) != _START_OF_RECORD:
            return None
        with zipfile.ZipFile(file) as archive:
            found = _never_written(archive.infolist(), size)
            if found is None:
                _require_checksums(archive, of_tensors=of_tensors)
            return found
    except zipfile.BadZipFile as error:
        return str(error)
    except OSError as error:
        if error.errno not in {None, errno.EINVAL}:  # what is raised for a place before the beginning
            raise
        return f"{type(error).__name__}: {error}"
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # what becomes of a damaged directory is not limited to some kinds of error
        return f"{type(error).__name__}: {error}"
    finally:
        file.seek(0)


def _never_written(records: list[zipfile.ZipInfo], size: int) -> str | None:
    """What torch does not write: directories, compressed or overlapping records, and two of a name."""
    if not records:
        return "it is an empty archive"
    for one in records:
        if one.is_dir() or one.external_attr & _IS_DIRECTORY:
            return f"{one.filename} is a directory"  # of which torch would read nothing
        if one.compress_type != zipfile.ZIP_STORED:
            return f"{one.filename} is compressed, which torch.save does not do"
    if sum(one.file_size for one in records) > size:
        return "its records together are larger than the file"
    if len({one.filename.lower() for one in records}) != len(records):  # torch finds them in any case
        return "two of its records have the same name"
    return None


def _require_checksums(archive: zipfile.ZipFile, *, of_tensors: bool) -> None:
    """Read the records, of which ``zipfile`` compares the checksums."""
    records = archive.infolist()
    if any(record.CRC for record in records):  # unless they were switched off in torch.serialization
        for record in records:
            if of_tensors or "/data/" not in record.filename:
                with archive.open(record) as content:
                    while content.read(_CHUNK):
                        pass
