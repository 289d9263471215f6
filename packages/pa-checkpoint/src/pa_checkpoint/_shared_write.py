"""One checkpoint that several processes write: what they tell each other of it.

The first process makes the folder and tells the others its name. Each writes its files there and hands in a receipt:
the sizes and the digests of its files, or what it could not do. With all receipts, the first one writes the index,
publishes the checkpoint, and tells the others the outcome.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pa_checkpoint._errors import CheckpointError
from pa_checkpoint._manifest import FileEntry
from pa_checkpoint._messages import Messages, Nobody

__all__ = ["ShareOfFirst", "ShareOfOther"]

_FOLDER, _OUTCOME = "folder", "outcome"


class ShareOfFirst:
    """What the first process does for a checkpoint, or the only one that writes it.

    Args:
        messages: Those about this checkpoint; None for a process that is alone.
    """

    rank: int = 0

    def __init__(self, messages: Messages | None = None) -> None:
        self._messages = Nobody() if messages is None else messages
        self._others = list(range(1, self._messages.num_processes))
        self._is_announced = False

    @contextmanager
    def telling_outcome(self) -> Generator[None]:
        """The context in which the checkpoint is written; the others learn how it ends."""
        outcome: dict[str, str] = _problem(_NOT_WRITTEN)
        try:
            yield
            outcome = {}
        except Exception as error:
            outcome = _problem(error)
            raise
        finally:
            with suppress(RuntimeError):  # whoever passes on the messages is gone
                self._announce("")
                self._messages.post(_OUTCOME, json.dumps(outcome))

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
                with suppress(RuntimeError):
                    self._next_receipt()
            raise

    def files_of_others(self, folder: Path) -> dict[str, FileEntry]:
        """Wait for the other processes, and return the sizes and digests of what they have written.

        Args:
            folder: The folder, as this process sees it.

        Raises:
            CheckpointError: One of them could not write its files, or wrote them to another disk.
            RuntimeError: One of them is gone.
        """
        files: dict[str, FileEntry] = {}
        while self._others:
            rank = self._others[0]
            written = self._next_receipt()
            for name, entry in written.items():
                _require_visible(folder / name, entry, rank)
            files |= written
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
    """What each other process does for a checkpoint that several write.

    Args:
        messages: Those about this checkpoint.
    """

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self._messages.rank

    def write(self, directory: Path, write_files: Callable[[Path], dict[str, FileEntry]]) -> None:
        """Write the files of this process, hand in the receipt, and return when the checkpoint is there.

        Args:
            directory: Where the checkpoint will be.
            write_files: Writes them to a folder, and returns their sizes and digests.

        Raises:
            CheckpointError: They cannot be written, or another process could not do its part.
            RuntimeError: The first process is gone.
        """
        name = self._messages.wait_for(_FOLDER, 0)
        problem: CheckpointError | None = None
        if name:
            try:
                self._write(Path(os.path.realpath(directory)).parent / name, write_files)
            except CheckpointError as error:
                problem = error
        outcome: dict[str, str] = json.loads(self._messages.wait_for(_OUTCOME, 0))
        if outcome:  # the same on all processes
            raise CheckpointError(**outcome) from problem

    def _write(self, folder: Path, write_files: Callable[[Path], dict[str, FileEntry]]) -> None:
        receipt: dict[str, Any] = _problem(_NOT_WRITTEN)
        try:
            if not folder.is_dir():
                raise _not_shared(folder, "the first process has made it, and it is not there")
            files = write_files(folder)
            receipt = {"files": {name: (entry.bytes, entry.sha256) for name, entry in files.items()}}
        except CheckpointError as error:
            receipt = _problem(error)
            raise
        finally:
            self._messages.post(_receipt(self.rank), json.dumps(receipt))


def _problem(error: Exception) -> dict[str, str]:
    """What the processes tell each other of an error."""
    if not isinstance(error, CheckpointError):
        found = f"{type(error).__name__}: {error}"
        error = CheckpointError(_NOT_WRITTEN.problem, found, _NOT_WRITTEN.expected, _NOT_WRITTEN.do)
    return {"problem": error.problem, "given": error.given, "expected": error.expected, "do": error.do}


def _receipt(rank: int) -> str:
    return f"receipt/{rank}"


_NOT_WRITTEN = CheckpointError(
    "A process did not finish its part of the checkpoint; nothing that was there before is lost.",
    given="interrupted while it wrote",
    do="See what that process printed last.",
)


def _require_visible(path: Path, entry: FileEntry, rank: int) -> None:
    if not path.is_file() or path.stat().st_size != entry.bytes:
        raise _not_shared(path, f"rank {rank} has written {entry.bytes} bytes, which are not there")


def _not_shared(path: Path, found: str) -> CheckpointError:
    return CheckpointError(
        "The processes do not see the same folder of checkpoints.",
        given=f"{path}: {found}",
        do="Save to a file system that all machines share, under the same path on each.",
    )
