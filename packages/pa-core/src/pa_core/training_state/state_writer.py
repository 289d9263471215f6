"""Writes training states at once or in the background."""

from __future__ import annotations

import copy
import inspect
import tempfile
import time
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from pa_checkpoint import CheckpointError, Folder, FolderLock, RemoteFolder, Writer
from pa_core import distributed
from pa_core.distributed.collectives import raise_on_all
from pa_core.errors import OtherProcessError
from pa_core.model_tensors import missing_methods
from pa_core.progress import Phase, Position
from pa_core.user_warnings import warn_user
from pa_distributed import RankMessages


def own_attributes(owner: object) -> dict[str, object]:
    """Return the attributes of a trainer that are a script's own: those that no class of this package declares.

    Args:
        owner: The trainer.
    """
    ours = [one for one in type(owner).__mro__ if one.__module__.partition(".")[0] == "pa_core"]
    declared = {name for one in ours for name in inspect.get_annotations(one)}
    return {name: value for name, value in vars(owner).items() if name not in declared}


class StateRequest(NamedTuple):
    """A training state that someone requested.

    Attributes:
        directory: Where it will be.
        extras: Further entries, as they are when the state is requested.
        asynchronous: Whether training continues while it is written.
        sequence: Its place among the states of a folder.
        on_saved: Called with the directory, by the process that writes, once it is there.
        keeps_other_runs: Whether a state of another run that has the name stays, and this one gets a similar name.
        may_fail: Whether the run continues if it cannot be written.
    """

    directory: Path
    extras: Mapping[str, Any]
    asynchronous: bool = False
    sequence: int = 0
    on_saved: Callable[[Path], object] | None = None
    keeps_other_runs: bool = False
    may_fail: bool = False


class StateWriter:
    """Writes states to folders of the run; every process calls each method.

    Attributes:
        folders: The folders that the run has for itself until it releases them.
        stores: The object stores to which their states are sent.
    """

    def __init__(self) -> None:
        self.folders: list[Path] = []
        self.stores: list[RemoteFolder] = []
        self._locks: dict[Path, FolderLock] = {}
        self._writer = Writer(connect=RankMessages)
        self._last_may_fail = False

    def reserve(self, folder: Path, say: Callable[[str], None], upload_to: str | None = None) -> None:
        """Make a folder, see that it can be written to, and acquire it for this run.

        Args:
            folder: Its path without symbolic links. A folder that the run has already is not an error.
            say: Told why it takes time, where it does.
            upload_to: The URL of an object store to which its states are sent.

        Raises:
            FolderInUseError: Another run uses it.
            CheckpointError: Its lock cannot be written, or the object store cannot be used.
            OSError: It cannot be made or written to.
        """
        if folder in self.folders:
            return
        if distributed.rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
            self._locks[folder] = FolderLock(folder, say)
            if upload_to is not None:
                store = RemoteFolder(upload_to)
                store.check()
                self.stores.append(store)
        self.folders.append(folder)

    def check_folders(self, folders: Collection[Path]) -> None:
        """Raise a ``CheckpointError`` if one of the folders was moved, replaced, removed or taken by another run.

        Args:
            folders: Others than the reserved ones do not matter.
        """
        for folder in folders:
            if (lock := self._locks.get(folder)) is not None:
                lock.check()

    def release(self) -> None:
        """Let other runs use the folders."""
        for lock in self._locks.values():
            lock.release()
        self._locks.clear()
        self.stores.clear()
        self.folders.clear()

    def copied_extras(self, request: StateRequest) -> dict[str, Any]:
        """Return a copy of the further entries of a state.

        Raises:
            CheckpointError: One of them cannot be stored.
        """
        self._writer.check({"extras": request.extras})
        return copy.deepcopy(dict(request.extras))

    def note_start(self, parts: Mapping[str, Any], optimizers: Mapping[str, Optimizer]) -> None:
        """Note the tensors as they are before training, to find in the first state those that have not changed.

        Args:
            parts: What a state would hold.
            optimizers: The optimizers, by name.

        Raises:
            CheckpointError: An entry cannot be stored.
        """
        for name, optimizer in optimizers.items():
            check_state_of_optimizer(optimizer, parts["optimizers"][name]["state"])
        self._writer.note(parts)

    def write(
        self, request: StateRequest, extras: Mapping[str, Any], parts: Mapping[str, Any], position: Position, run: str
    ) -> None:
        """Write a state that was requested.

        Args:
            request: The state.
            extras: Its further entries.
            parts: What else it holds.
            position: Where the run stands.
            run: The name of the run, which distinguishes its states from other states in the same folder.

        Raises:
            CheckpointError: It could not be written, or the one before it, in the background, could not.
            OSError: As above.
        """
        with self._warning_of_last_one():
            self._writer.wait()
        self._last_may_fail = request.may_fail
        with self._warning_of_last_one():
            self._writer.save(
                request.directory,
                {**parts, "extras": extras},
                summary=_summary(request, position, run),
                blocking=not request.asynchronous,
                around=partial(self._around, request, run),
            )

    @contextmanager
    def _warning_of_last_one(self) -> Generator[None]:
        """Let a state that may fail cause a warning, on the process that has written it, instead of an error."""
        try:
            yield
        except (CheckpointError, OtherProcessError, OSError) as error:
            if not self._last_may_fail:
                raise
            if not isinstance(error, OtherProcessError):
                given = f" ({error.given})" if isinstance(error, CheckpointError) else ""
                problem = error.problem.rstrip(".") if isinstance(error, CheckpointError) else str(error)
                warn_user(f"{problem}{given}. The run continues without this state, and tries again at the next one.")

    def settle(self) -> None:
        """Wait for what is being written in the background, and see that the folders are still this run's.

        Raises:
            CheckpointError: It could not be written, or a folder was moved, replaced or removed.
            OSError: It could not be written.
        """
        with self._warning_of_last_one():
            self._writer.wait()
        if self.folders:
            with raising_on_all():
                self.check_folders(self.folders)

    def abandon(self, failure: BaseException) -> None:
        """Let the writing in the background finish when the run fails, telling other processes nothing.

        Args:
            failure: Why the run ends; notes are added to it of states that are missing.
        """
        try:
            self._writer.wait()
        except (CheckpointError, OtherProcessError, OSError) as error:
            failure.add_note(f"Besides, the last training state could not be written: {error}")

    @contextmanager
    def _around(self, request: StateRequest, run: str, directory: Path) -> Generator[Path]:
        """The context in which the first process writes a state to a folder that is still this run's."""
        folder = directory.parent
        try:
            self.check_folders([folder])
            if request.keeps_other_runs:
                directory = Folder(folder).path_for(directory.name, run)
            yield directory
            if request.on_saved is not None:
                request.on_saved(directory)
        except (CheckpointError, OSError):
            self.check_folders([folder])  # if it has gone meanwhile, that is the reason to tell
            raise


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


@contextmanager
def raising_on_all() -> Generator[None]:
    """Raise what one process meets within the context on all of them, which all miss a state for it."""
    problem: Exception | None = None
    try:
        yield
    except (CheckpointError, OSError) as error:
        problem = error
    raise_on_all(problem)


def check_scheduler(scheduler: object) -> None:
    """Raise an error for a scheduler that has no state to save, or none that could be loaded.

    Raises:
        CheckpointError: It lacks ``state_dict`` or ``load_state_dict``.
    """
    if lacking := missing_methods(scheduler):
        raise CheckpointError(
            "The scheduler cannot be part of a training state.",
            given=f"{type(scheduler).__name__} without {' and '.join(lacking)}",
            do=f"Give {type(scheduler).__name__} these methods.",
        )


def check_state_of_optimizer(optimizer: Optimizer, state: object) -> None:
    """Raise an error for an optimizer whose present state could not be stored.

    Args:
        optimizer: The optimizer. Most make their state with the first update.
        state: The state.

    Raises:
        CheckpointError: Something in the state is neither a tensor nor plain.
    """
    try:
        Writer.check({"optimizer": state})
    except CheckpointError as error:
        raise CheckpointError(
            "The state of the optimizer cannot be stored in a training state.",
            given=f"{type(optimizer).__name__} with {error.given}",
            expected=error.expected,
            do="Use an optimizer whose state is of plain tensors, such as torch.optim.AdamW, or save no training "
            "states: trainer.save_model() saves the weights.",
        ) from error
