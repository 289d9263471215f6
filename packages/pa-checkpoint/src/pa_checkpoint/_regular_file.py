"""Opening files that others may have exchanged for something else."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

__all__ = ["open_regular_file"]


def open_regular_file(path: Path) -> BufferedReader:
    """Open a file for reading.

    Raises:
        OSError: There is no file, or something else, such as a FIFO, from which a read might never return.
    """
    file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115 - the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
