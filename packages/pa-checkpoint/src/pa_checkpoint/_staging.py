"""Publishing and removing directories atomically, by rename.

All names on the way are hidden ones next to the target: ``.staging.KEY.TOKEN`` while it is written, ``.NAME.set_aside``
for the old one while a new one takes its place, ``.removed.KEY.TOKEN`` while it is deleted. KEY stands for the run, so
that a run cleans up after itself; after others only where their process is gone. Anything else that has such a name, a
file or a symbolic link, is not ours and is left alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import sys
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

from pa_checkpoint._atomic_file import sync_folder

__all__ = [
    "Found",
    "discard",
    "find",
    "key_of",
    "leftovers",
    "located",
    "publish",
    "replaced",
    "shown_path",
    "staged",
    "used",
]

_ATTEMPTS = 5  # to look in both places: while one is looked at, the directory may move to the other
_SET_ASIDE = re.compile(r"\.(.+)\.set_aside")
_HIDDEN = re.compile(r"\.(?P<kind>staging|removed)\.(?P<key>[0-9a-f]{12})\.[0-9a-f]+")


@contextlib.contextmanager
def staged(target: Path, run: str) -> Generator[Path]:
    """Make a folder in which to build what is to be at ``target``; remove it when that fails.

    Args:
        target: An absolute path.
        run: Who writes.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = _hidden(target, run, "staging")
    try:
        folder.mkdir()
        with used(folder):
            yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def publish(folder: Path, target: Path, run: str) -> None:
    """Put a finished folder in its place, replacing an older one if there is one.

    At every instant either the new or the old one is at ``located(target)``, even after a power cut.
    """
    aside = _set_aside(target)
    sync_folder(folder)
    try:
        if target.exists():
            if aside.exists():  # a crash came between publishing and cleaning up
                discard(aside, run)
            target.rename(aside)
        folder.rename(target)
    except BaseException:
        if aside.exists() and not target.exists():
            aside.rename(target)
        raise
    sync_folder(target.parent)
    if aside.exists():
        with contextlib.suppress(OSError):  # the new one is there, and the next write removes this
            discard(aside, run)


def discard(directory: Path, run: str) -> None:
    """Remove a directory so that half of it is never found under its name."""
    removed = _hidden(directory, run, "removed")
    directory.rename(removed)
    shutil.rmtree(removed)


class Found(NamedTuple):
    """Where a directory is at this moment, and what tells it from one that replaces it; zeros where none is."""

    path: Path
    inode: int
    changed: int


def find(target: Path) -> Found:
    """Find the directory of that name: the renamed old one, as long as its successor is missing."""
    places = (target, _set_aside(Path(os.path.realpath(target))))  # Path.resolve raises an error for a loop of links
    for place in places * _ATTEMPTS:
        with contextlib.suppress(OSError):
            status = place.stat()
            return Found(place, status.st_ino, status.st_mtime_ns)
    return Found(target, 0, 0)


def located(target: Path) -> Path:
    """Return where the directory of that name is, or would be."""
    return find(target).path


def shown_path(entry: Path) -> Path | None:
    """Return the path by which a directory is known; None for what is hidden."""
    if match := _SET_ASIDE.fullmatch(entry.name):
        target = entry.with_name(match[1])
        return None if target.exists() else target
    return None if entry.name.startswith(".") else entry


def leftovers(folder: Path, run: str | None) -> list[Path]:
    """Return what the run, or any process that is gone, has begun to write, and what any run has begun to delete."""
    key = None if run is None else key_of(run)
    named = [(entry, match) for entry in folder.iterdir() if (match := _HIDDEN.fullmatch(entry.name))]
    return sorted(
        entry
        for entry, match in named
        if _is_own_directory(entry) and (match["kind"] == "removed" or match["key"] == key or _is_abandoned(entry))
    )


def replaced(folder: Path) -> list[Path]:
    """Return old directories that were replaced and not deleted, no matter who wrote them."""
    return [
        entry
        for entry in sorted(folder.iterdir())
        if _SET_ASIDE.fullmatch(entry.name) and shown_path(entry) is None and _is_own_directory(entry)
    ]


def _is_own_directory(entry: Path) -> bool:
    """Whether this is a directory itself, not a link to one that may be anywhere."""
    return entry.is_dir() and not entry.is_symlink()


def _hidden(path: Path, run: str, kind: str) -> Path:
    return path.with_name(f".{kind}.{key_of(run)}.{secrets.token_hex(4)}")


def key_of(run: str) -> str:
    """Return what stands for a run in the names of files, no matter what it is called."""
    return hashlib.sha256(run.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _set_aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.set_aside")


@contextlib.contextmanager
def used(folder: Path) -> Generator[None]:
    """Within the context, the folder counts as being written to, unless this process dies."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.callback(os.close, _locked(folder))
        yield


def _is_abandoned(folder: Path) -> bool:
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
