"""Whether some process is writing in a folder now: a lock on it, which the system takes back with the process.

Where the file system knows no such locks, nothing can be told.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from pathlib import Path

__all__ = ["is_abandoned", "used"]


@contextlib.contextmanager
def used(folder: Path) -> Generator[None]:
    """Within the context, the folder counts as being written to, unless this process dies."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.callback(os.close, _locked(folder))
        yield


def is_abandoned(folder: Path) -> bool:
    """Whether it is certain that no process is writing in a folder, on any machine that sees it."""
    try:
        os.close(_locked(folder))
    except OSError:
        return False
    return True


def _locked(folder: Path) -> int:
    """Return a descriptor of the folder that holds its lock.

    Raises:
        OSError: Another process holds it, or there are no such locks here.
    """
    if sys.platform == "win32":
        raise OSError("folders cannot be locked here")
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
