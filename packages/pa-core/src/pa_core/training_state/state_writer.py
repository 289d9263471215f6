"""Writing training states: requested at any time, written by the first process, errors raised on all.

Of sharded tensors, each process writes its pieces.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pa_core import distributed
from pa_core.distributed.mailbox import Mailbox
from pa_core.errors import CheckpointError, OtherProcessError
from pa_core.progress import Phase, Position
from pa_core.sharded_tensors import is_sharded
from pa_core.storage import StateFolder
from pa_core.storage.background import BackgroundWriter
from pa_core.storage.encoding import Encoded, encode
from pa_core.storage.late_copies import LateCopies
from pa_core.storage.shared_write import ShareOfFirst, ShareOfOther
from pa_core.storage.state import write_pieces, write_state
from pa_core.storage.unchanged import ChangedMeanwhileError, LinkableFiles, UnchangedTensors
from pa_core.training_state.reserved_folders import ReservedFolders
from pa_core.training_state.snapshots import Snapshots

__all__ = ["StateRequest", "StateWriter", "raise_on_all"]


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

    The first one writes, and where the weights are sharded, each of them.

    Args:
        folders: The folders that the run has for itself, at which each write looks first.
        report_lost: Called on a process that could not write a state in the background, because tensors changed where
            nothing but an optimizer should have changed them. The next ones are copied at once.
    """

    def __init__(self, folders: ReservedFolders, report_lost: Callable[[], object]) -> None:
        self._folders = folders
        self._requests: list[tuple[StateRequest, Encoded]] = []
        self._writes_in_background = False
        self._snapshots = Snapshots(report_lost)
        self._writer: BackgroundWriter | None = None
        self._has_lost_one = False
        self._unchanged, self._linkable = UnchangedTensors(), LinkableFiles()

    @property
    def has_requests(self) -> bool:
        """Whether a state waits for the moment at which it can be saved."""
        return bool(self._requests)

    def request(self, request: StateRequest) -> None:
        """Have a state written with the next ones.

        Raises:
            CheckpointError: One of its extras cannot be stored.
        """
        self._requests.append((request, encode(dict(request.extras), "extras")))
        self._writes_in_background |= request.asynchronous

    def note_start(self, parts: Mapping[str, Any]) -> None:
        """Note the tensors as they are before training, to find in the first state those that have not changed.

        Args:
            parts: What a state would hold.

        Raises:
            CheckpointError: An entry cannot be stored.
        """
        if distributed.rank() == 0 or _is_written_together(parts):
            encoded = {name: encode(part, name) for name, part in parts.items()}
            self._unchanged.note(_tensors_that_tell_of_changes(encoded, parts["models"]))

    def write(
        self, parts: Mapping[str, Any], position: Position, run: str, optimizers: Collection[Optimizer] = ()
    ) -> None:
        """Write every state that was requested.

        Args:
            parts: What the state holds.
            position: Where the run stands.
            run: The name of the run, which tells its states from other runs' states in the same folder.
            optimizers: The optimizers, if training continues until the next step of one of them.

        Raises:
            CheckpointError: It could not be written, or the one before it, in the background, could not.
            OSError: As above.
        """
        self.settle()
        requests, self._requests = self._requests, []
        together = _is_written_together(parts)
        encoded: dict[str, Encoded] = {}
        problem: Exception | None = None
        if distributed.rank() == 0 or together:
            try:
                encoded = {name: encode(part, name) for name, part in parts.items()}
            except CheckpointError as error:
                problem = error
        if together:  # none begins to wait for what another one cannot write
            raise_on_all(problem)
        jobs = [
            _Job(request, {**encoded, "extras": extras}, _summary(request, position, run), _share(together=together))
            for request, extras in requests
        ]
        if encoded:
            tensors = _tensors_that_tell_of_changes(encoded, parts["models"])
            constant = self._unchanged.find(tensors, _parameters(parts["models"]), position.updates)
            try:
                self._write_all(jobs, constant, () if together else optimizers)
            except (CheckpointError, OSError) as error:
                problem = error
        raise_on_all(problem)

    def settle(self) -> None:
        """Wait for what is being written in the background.

        Raises:
            CheckpointError: It could not be written.
            OSError: As above.
        """
        if not self._writes_in_background:
            return
        problem: Exception | None = None
        try:
            self._wait()
        except (CheckpointError, OSError) as error:
            problem = error
        raise_on_all(problem)

    def abandon(self, failure: BaseException) -> None:
        """Let the writing in the background finish when the run fails, without telling other processes.

        Args:
            failure: Why the run ends; notes are added to it of states that are missing.
        """
        self.drop_requests(failure)
        try:
            self._wait()
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

    def finish_copying(self) -> None:
        """Complete what is copied in the background, before something may change the tensors."""
        self._snapshots.finish()

    def _wait(self) -> None:
        """Wait until the background thread has written."""
        self.finish_copying()
        if self._writer is not None:
            self._writer.wait()
        if self._has_lost_one:
            self._has_lost_one = False
            self._snapshots.distrust()

    def _write_all(self, jobs: Sequence[_Job], constant: Collection[str], optimizers: Collection[Optimizer]) -> None:
        try:
            for job in jobs:
                self._wait()  # it reads the buffers that are filled next
                is_late = job.request.asynchronous and self._snapshots.trusts(optimizers)
                live = self._linkable.proven(constant if is_late else ())
                if not job.request.asynchronous:
                    self._write(job, job.parts, constant)
                    continue
                if self._writer is None:
                    self._writer = BackgroundWriter()
                copied, copies = self._snapshots.take(job.parts, optimizers, live)
                self._writer.submit(partial(self._write_when_copied, copies, job, copied, constant))
        except BaseException:
            for job in jobs:
                job.share.call_off()
            raise

    def _write_when_copied(
        self, copies: LateCopies, job: _Job, parts: Mapping[str, Encoded], constant: Collection[str]
    ) -> None:
        if not copies.wait():
            return
        try:
            self._write(job, parts, constant)
        except ChangedMeanwhileError:
            self._has_lost_one = True

    def _write(self, job: _Job, parts: Mapping[str, Encoded], constant: Collection[str]) -> None:
        """Write the share of this process in a state, and on the first one publish the state."""
        if isinstance(job.share, ShareOfOther):
            write_pieces(job.request.directory, parts, job.share, constant=constant, linkable=self._linkable)
            return
        directory, folder = job.request.directory, job.request.directory.parent
        try:
            self._folders.check([folder])
            if job.request.keeps_other_runs:
                directory = StateFolder(folder).path_for(directory.name, str(job.summary["run"]))
            write_state(directory, parts, job.summary, constant=constant, linkable=self._linkable, share=job.share)
            if job.request.on_saved is not None:
                job.request.on_saved(directory)
        except (CheckpointError, OSError):
            self._folders.check([folder])  # if it has gone meanwhile, that is the reason to tell
            raise
        finally:
            job.share.call_off()


@dataclass(frozen=True)
class _Job:
    """A state to write, as far as this process has a share in it."""

    request: StateRequest
    parts: Mapping[str, Encoded]
    summary: Mapping[str, str | int | bool]
    share: ShareOfFirst | ShareOfOther


def _is_written_together(parts: Mapping[str, Any]) -> bool:
    """Whether weights are sharded over processes, which is the same on all of them."""
    models = parts["models"].values()
    return distributed.num_processes() > 1 and any(
        is_sharded(tensor) for model in models for tensor in model["weights"].values()
    )


def _share(*, together: bool) -> ShareOfFirst | ShareOfOther:
    if not together:
        return ShareOfFirst()
    mailbox = Mailbox()
    return ShareOfFirst(mailbox) if mailbox.rank == 0 else ShareOfOther(mailbox)


def _tensors_that_tell_of_changes(parts: Mapping[str, Encoded], models: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of which torch notes changes, by name.

    It notes none where an optimizer changes many sharded ones at a time: of those, only what is frozen is here.
    """
    tensors = {name: tensor for part in parts.values() for name, tensor in part.tensors.items()}
    frozen = _parameters(models, is_trained=False)
    pieces = {name: piece for part in parts.values() for name, piece in part.pieces_written_here().items()}
    return {**tensors, **{name: piece for name, piece in pieces.items() if name in frozen}}


def _parameters(models: Mapping[str, Any], *, is_trained: bool | None = None) -> set[str]:
    """Return the names that parameters have in a state.

    Args:
        models: What was captured of the models, by name.
        is_trained: Whether those that are trained are wanted, or the others; None wants all.
    """
    return {
        f"models/{model}/weights/{name}"
        for model, captured in models.items()
        for name, trained in captured["trainable"].items()
        if is_trained in (None, trained)
    }


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


def raise_on_all(problem: Exception | None) -> None:
    """Raise what one process has met on all of them, which all lack the state.

    Args:
        problem: What this process has met.
    """
    for error in distributed.gather_objects(problem):
        if error is not None:
            raise error
