"""Which folders this process is saving checkpoints to, and what is to be done once these are there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["BackgroundSave", "once_there"]

_Job = Callable[[], object]

_lock = threading.Lock()
_in_progress: set[BackgroundSave] = set()


class BackgroundSave:
    """A checkpoint that is being saved, from the moment at which the training continues.

    Args:
        path: Where it will be.
    """

    def __init__(self, path: Path) -> None:
        self.folder: str = os.path.realpath(path.parent)
        self.afterwards: dict[object, _Job] = {}
        with _lock:
            _in_progress.add(self)

    @contextmanager
    def ending(self) -> Generator[None]:
        """The context in which it is written, after which it is there, or has failed."""
        try:
            yield
        except BaseException:
            self.forget()
            raise
        for job in self.forget():
            job()

    def forget(self) -> list[_Job]:
        """Have nothing more done once it is there; return what was to be done."""
        with _lock:
            _in_progress.discard(self)
            return [*self.afterwards.values()]


def once_there(folder: Path, job: _Job) -> None:
    """Have something done as soon as the checkpoint is there that is being saved to a folder, if one is.

    What was asked for earlier is not done any more: the last call counts.

    Args:
        folder: The folder.
        job: Done in the thread that writes.
    """
    place = os.path.realpath(folder)
    with _lock:
        for save in _in_progress:
            if save.folder == place:
                save.afterwards[place] = job
