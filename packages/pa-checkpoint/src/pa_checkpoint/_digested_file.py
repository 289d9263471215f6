"""Files whose digest is known when they have been written or read, because every byte passed by once."""

from __future__ import annotations

import hashlib
import os
import sys
from io import BufferedReader, BufferedWriter
from pathlib import Path

__all__ = ["DigestingReader", "DigestingWriter", "sha256_of"]

_CHUNK = 1 << 22  # bytes: a busy training thread gives the GIL back after up to 5 ms, which is paid for each chunk
_WRITE_BACK = 1 << 25  # bytes


class DigestingWriter:
    """Hashes what it writes.

    Args:
        file: Open for writing; None to learn the digest alone.
    """

    def __init__(self, file: BufferedWriter | None) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._written_back = 0
        self.size: int = 0
        """The bytes written so far."""

    @property
    def sha256(self) -> str:
        """The digest of all that was written."""
        return self._hash.hexdigest()

    def write(self, content: bytes | memoryview) -> None:
        """Write and hash piece by piece; other threads run meanwhile."""
        view = memoryview(content)
        for start in range(0, len(view), _CHUNK):
            chunk = view[start : start + _CHUNK]
            self._hash.update(chunk)
            self.size += len(chunk)
            if self._file is not None:
                self._file.write(chunk)
                self._write_back(self._file.fileno())

    def _write_back(self, descriptor: int) -> None:
        """Have the disk write while more is hashed, so that little is left for the end: this call does not wait."""
        size = self.size - self._written_back
        if size >= _WRITE_BACK and sys.platform == "linux":
            os.posix_fadvise(descriptor, self._written_back, size, os.POSIX_FADV_DONTNEED)
            self._written_back = self.size


def sha256_of(path: Path) -> str:
    """Return the digest of a whole file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class DigestingReader:
    """Hashes what it reads.

    Args:
        file: Open for reading.
        verify: Without it nothing is hashed, and ``sha256`` is the digest of nothing.
    """

    def __init__(self, file: BufferedReader, *, verify: bool) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._verify = verify

    @property
    def sha256(self) -> str:
        """The digest of all that was read."""
        return self._hash.hexdigest()

    def read(self, size: int = -1) -> bytes:
        """Read this many bytes, or as many as there are; all that is left without a size."""
        content = self._file.read(size)
        if self._verify:
            self._hash.update(content)
        return content

    def read_into(self, view: memoryview) -> int:
        """Fill a buffer piece by piece; return how many bytes there were."""
        filled = 0
        while filled < len(view):
            chunk = view[filled : filled + _CHUNK]
            count = self._file.readinto(chunk)
            if count == 0:
                break
            if self._verify:
                self._hash.update(chunk[:count])
            filled += count
        return filled
