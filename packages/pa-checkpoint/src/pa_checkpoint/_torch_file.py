"""Compares files of ``torch.save`` with the checksums in them before ``torch.load`` reads them."""

from __future__ import annotations

import errno
import os
import zipfile
from typing import BinaryIO

_CHUNK = 1 << 20  # bytes
_START_OF_RECORD = b"PK\x03\x04"
_IS_DIRECTORY = 0x10


def find_damage(file: BinaryIO, *, of_tensors: bool = True) -> str | None:
    """Return the damage in a file that ``torch.save`` wrote, or None if there is none.

    You call it before ``torch.load``, which ignores the checksums in a file, so a flipped bit would silently change a
    weight. It runs nothing from the file. It does not check whether the file contains only plain values:
    ``torch.load(weights_only=True)`` does. Files of the format before torch 1.6, and anything else that is not a zip
    file, have no checksums, and give None. For a checkpoint of ``pa_checkpoint.save``, use ``verify``.

    Args:
        file: The file, open for reading in binary mode. Afterwards its position is at the beginning, so
            ``torch.load(file)`` can read it.
        of_tensors: Whether to compare the contents of tensors, too, which reads the whole file. The default is True,
            since most of a file is tensors. Pass False for a quick check of a large file.

    Returns:
        A sentence about the damage, or None.

    Raises:
        OSError: The file cannot be read.

    Example:
        >>> import io, struct, torch
        >>> from pa_checkpoint.torch_states import find_damage
        >>> file = io.BytesIO()
        >>> torch.save(torch.ones(100), file)
        >>> find_damage(file) is None
        True
        >>> content = bytearray(file.getvalue())
        >>> content[content.index(struct.pack("<f", 1.0)) + 50] ^= 1  # a flipped bit
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
        if error.errno not in {None, errno.EINVAL}:  # raised for a place before the beginning
            raise
        return f"{type(error).__name__}: {error}"
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # what becomes of a damaged directory is not limited to some kinds of error
        return f"{type(error).__name__}: {error}"
    finally:
        file.seek(0)


def _never_written(records: list[zipfile.ZipInfo], size: int) -> str | None:
    """Return a sign of another program: a directory, a compressed or overlapping record, or two equal names."""
    if not records:
        return "it is an empty archive"
    for record in records:
        if record.is_dir() or record.external_attr & _IS_DIRECTORY:
            return f"{record.filename} is a directory"  # torch would read nothing from it
        if record.compress_type != zipfile.ZIP_STORED:
            return f"{record.filename} is compressed, which torch.save does not do"
    if sum(record.file_size for record in records) > size:
        return "its records together are larger than the file"
    if len({record.filename.lower() for record in records}) != len(records):  # torch finds them in any case
        return "two of its records have the same name"
    return None


def _require_checksums(archive: zipfile.ZipFile, *, of_tensors: bool) -> None:
    """Read the records, so that ``zipfile`` compares the checksums."""
    records = archive.infolist()
    if any(record.CRC for record in records):  # unless they were switched off in torch.serialization
        for record in records:
            if of_tensors or "/data/" not in record.filename:
                with archive.open(record) as content:
                    while content.read(_CHUNK):
                        pass
