"""One training state that several processes write: what they tell each other of it.

The first process makes the folder and tells the others its name. Each writes its files there and hands in a receipt:
the sizes and the digests of its files, or what it could not do. With all receipts, the first one writes the index and
publishes the state.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from pa_core.errors import CheckpointError, ExplainedError
from pa_core.storage.manifest import FileEntry

__all__ = ["Messages", "ShareOfFirst", "ShareOfOther"]

_FOLDER = "folder"


class Messages(Protocol):
    """What the processes tell each other of one state, without waiting for each other in the main thread."""

    @property
    def rank(self) -> int:
        """The rank of this process."""
        ...

    @property
    def num_processes(self) -> int:
        """How many processes there are."""
        ...

    def post(self, key: str, message: str) -> None:
        """Leave a message for the others."""
        ...

    def wait_for(self, key: str, rank: int) -> str:
        """Return a message once the process of that rank has left it."""
        ...

    def remove(self, key: str) -> None:
        """Remove a message that everybody has read."""
        ...


class _Nobody:
    """The messages of a process that writes by itself."""

    rank: int = 0
    num_processes: int = 1

    def post(self, key: str, message: str) -> None:
        """Tell nobody."""

    def wait_for(self, key: str, rank: int) -> str:
        """Return what nobody says."""
        raise LookupError(key, rank)

    def remove(self, key: str) -> None:
        """Leave everything as it is."""


class ShareOfFirst:
    """What the first process does for a state, or the only one that writes it.

    Args:
        messages: Those about this state; None where no other process writes.
    """

    rank: int = 0

    def __init__(self, messages: Messages | None = None) -> None:
        self._messages = _Nobody() if messages is None else messages
        self._others = list(range(1, self._messages.num_processes))
        self._is_announced = False

    def call_off(self) -> None:
        """Tell the others that there will be no folder, unless they know of one."""
        with suppress(ExplainedError):  # whoever passes on the messages is gone
            self._announce("")

    @contextmanager
    def in_folder(self, folder: Path) -> Generator[None]:
        """The context in which all processes write to a folder, and after which none does.

        Args:
            folder: The folder.
        """
        self._announce(folder.name)
        try:
            yield
        except Exception:
            while self._others:  # nobody may write any more when the folder is removed
                with suppress(ExplainedError):
                    self._next_receipt()
            raise

    def files_of_others(self, folder: Path) -> dict[str, FileEntry]:
        """Wait for the other processes, and return the sizes and digests of what they have written.

        Args:
            folder: The folder, as this process sees it.

        Raises:
            CheckpointError: One of them could not write its files, or wrote them to another disk.
            OtherProcessError: One of them is gone.
        """
        files: dict[str, FileEntry] = {}
        while self._others:
            rank = self._others[0]
            written = self._next_receipt()
            for name, entry in written.items():
                _require_visible(folder / name, entry, rank)
            files |= written
        self._messages.remove(_FOLDER)
        return files

    def _announce(self, folder: str) -> None:
        if not self._is_announced:
            self._is_announced = True
            self._messages.post(_FOLDER, folder)

    def _next_receipt(self) -> dict[str, FileEntry]:
        rank = self._others.pop(0)
        receipt: dict[str, Any] = json.loads(self._messages.wait_for(_receipt(rank), rank))
        self._messages.remove(_receipt(rank))
        if "problem" in receipt:
            raise CheckpointError(**{**receipt, "given": f"rank {rank}: {receipt['given']}"})
        return {name: FileEntry(*entry) for name, entry in receipt["files"].items()}


class ShareOfOther:
    """What each other process does for a state that several write.

    Args:
        messages: Those about this state.
    """

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    def call_off(self) -> None:
        """Do nothing: the first process learns from the receipt."""

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self._messages.rank

    def write(self, directory: Path, write_files: Callable[[Path], dict[str, FileEntry]]) -> None:
        """Write the files of this process, and hand in the receipt.

        Args:
            directory: Where the state will be.
            write_files: Writes them to a folder, and returns their sizes and digests.

        Raises:
            CheckpointError: They cannot be written, or the first process cannot begin.
            OtherProcessError: The first process is gone.
        """
        name = self._messages.wait_for(_FOLDER, 0)
        if not name:
            raise _called_off(directory)
        receipt: dict[str, Any] = _NOT_WRITTEN
        try:
            folder = Path(os.path.realpath(directory)).parent / name
            if not folder.is_dir():
                raise _not_shared(folder, "the first process has made it, and it is not there")
            files = write_files(folder)
            receipt = {"files": {name: (entry.bytes, entry.sha256) for name, entry in files.items()}}
        except CheckpointError as error:
            receipt = {"problem": error.problem, "given": error.given, "expected": error.expected, "do": error.do}
            raise
        finally:
            self._messages.post(_receipt(self.rank), json.dumps(receipt))


def _receipt(rank: int) -> str:
    return f"receipt/{rank}"


_NOT_WRITTEN = {
    "problem": "A process did not finish its part of the training state; nothing that was there before is lost.",
    "given": "interrupted while it wrote",
    "expected": "every process to write its part",
    "do": "See what that process printed last.",
}


def _called_off(directory: Path) -> CheckpointError:
    return CheckpointError(
        "The training state is not written, since the first process cannot begin.",
        given=str(directory),
        expected="a folder that the first process makes",
        do="See the error of rank 0.",
    )


def _require_visible(path: Path, entry: FileEntry, rank: int) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise _not_shared(path, f"rank {rank} has written it, and here it is not there ({error.strerror})") from error
    if size != entry.bytes:
        raise _not_shared(path, f"rank {rank} has written {entry.bytes} bytes, and here there are {size}")


def _not_shared(path: Path, found: str) -> CheckpointError:
    return CheckpointError(
        "The processes do not see the same folder of training states.",
        given=f"{path}: {found}",
        expected="one folder for all processes, under the same path on each machine",
        do="Save to a file system that all machines share.",
    )
