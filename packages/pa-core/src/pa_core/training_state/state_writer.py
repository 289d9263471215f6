"""Writing training states: requested at any time, written by the first process, errors raised on all.

Of sharded tensors, each process writes its pieces.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pa_checkpoint import CheckpointError, Folder, Writer
from pa_core.distributed.mailbox import Mailbox
from pa_core.errors import OtherProcessError
from pa_core.progress import Phase, Position
from pa_core.training_state.reserved_folders import ReservedFolders

__all__ = ["StateRequest", "StateWriter"]


@dataclass(frozen=True)
class StateRequest:
    """A training state that someone requested.

    Attributes:
        directory: Where it will be.
        extras: Further entries, as they are when the state is requested.
        asynchronous: Whether training continues while it is written.
        sequence: Its place among the states of a folder.
        on_saved: Called with the directory, by the process that writes, once it is there.
        keeps_other_runs: Whether a state of another run that has the name stays, and this one gets a similar name.
    """

    directory: Path
    extras: Mapping[str, Any]
    asynchronous: bool = False
    sequence: int = 0
    on_saved: Callable[[Path], object] | None = None
    keeps_other_runs: bool = False


class StateWriter:
    """Writes the states that were requested; every process calls each method.

    Args:
        folders: The folders that the run has for itself, at which each write looks first.
    """

    def __init__(self, folders: ReservedFolders) -> None:
        self._folders = folders
        self._requests: list[tuple[StateRequest, dict[str, Any]]] = []
        self._writer = Writer(connect=Mailbox)

    @property
    def has_requests(self) -> bool:
        """Whether a state waits for the moment at which it can be saved."""
        return bool(self._requests)

    def request(self, request: StateRequest) -> None:
        """Have a state written with the next ones.

        Raises:
            CheckpointError: One of its extras cannot be stored.
        """
        self._writer.check({"extras": request.extras})
        self._requests.append((request, copy.deepcopy(dict(request.extras))))

    def note_start(self, parts: Mapping[str, Any]) -> None:
        """Note the tensors as they are before training, to find in the first state those that have not changed.

        Args:
            parts: What a state would hold.

        Raises:
            CheckpointError: An entry cannot be stored.
        """
        self._writer.note(parts)

    def write(self, parts: Mapping[str, Any], position: Position, run: str) -> None:
        """Write every state that was requested.

        Args:
            parts: What the state holds.
            position: Where the run stands.
            run: The name of the run, which distinguishes its states from other states in the same folder.

        Raises:
            CheckpointError: It could not be written, or the one before it, in the background, could not.
            OSError: As above.
        """
        requests, self._requests = self._requests, []
        for request, extras in requests:
            self._writer.save(
                request.directory,
                {**parts, "extras": extras},
                summary=_summary(request, position, run),
                blocking=not request.asynchronous,
                around=self._around(request, run),
            )

    def settle(self) -> None:
        """Wait for what is being written in the background.

        Raises:
            CheckpointError: It could not be written.
            OSError: As above.
        """
        self._writer.wait()

    def abandon(self, failure: BaseException) -> None:
        """Let the writing in the background finish when the run fails, telling other processes nothing.

        Args:
            failure: Why the run ends; notes are added to it of states that are missing.
        """
        self.drop_requests(failure)
        try:
            self._writer.wait()
        except (CheckpointError, OtherProcessError, OSError) as error:
            failure.add_note(f"Besides, the last training state could not be written: {error}")

    def drop_requests(self, failure: BaseException | None = None) -> None:
        """Forget the states that were requested.

        Args:
            failure: The error that ends the run, to which a note is added for each of them.
        """
        requests, self._requests = self._requests, []
        if failure is None:
            return
        for request, _ in requests:
            failure.add_note(
                f"The training state {request.directory} was requested but not saved: the run ended before its next "
                "safe point."
            )

    def _around(self, request: StateRequest, run: str) -> Callable[[Path], Any]:
        """Return the context in which the first process writes a state to a folder that is still this run's."""

        @contextmanager
        def around(directory: Path) -> Generator[Path]:
            folder = directory.parent
            try:
                self._folders.check([folder])
                if request.keeps_other_runs:
                    directory = Folder(folder).path_for(directory.name, run)
                yield directory
                if request.on_saved is not None:
                    request.on_saved(directory)
            except (CheckpointError, OSError):
                self._folders.check([folder])  # if it has gone meanwhile, that is the reason to tell
                raise

        return around


def _summary(request: StateRequest, position: Position, run: str) -> dict[str, str | int | bool]:
    return {
        "run": run,
        "sequence": request.sequence,
        "update": position.updates,
        "epoch": position.epochs,
        "complete": position.phase is Phase.COMPLETE,
        "saved_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "torch": str(torch.__version__),
    }
