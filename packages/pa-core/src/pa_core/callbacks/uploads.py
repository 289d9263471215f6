"""Uploading training states to an object store while the training continues."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from pa_checkpoint import CheckpointError, CheckpointNotFoundError, Folder, RemoteFolder
from pa_core import distributed
from pa_core.distributed.collectives import raise_on_all
from pa_core.errors import ConfigurationError, TrainingPreempted
from pa_core.training_state.downloaded_states import url_of
from pa_core.user_warnings import warn_user
from pa_data.errors import without_secrets
from pa_distributed import run_while_others_wait

_SECONDS_WITHOUT_A_WORD = 2.0


def check_upload_arguments(save_dir: str | Path, upload_to: str | None, upload_errors: str) -> None:
    """Raise an error if ``save_dir`` is a URL, ``upload_to`` is a local folder, or ``upload_errors`` is unknown.

    Args:
        save_dir: The folder of the states.
        upload_to: The URL that states are sent to.
        upload_errors: The treatment of states that could not be sent.

    Raises:
        ConfigurationError: An argument cannot be used.
    """
    if url_of(save_dir) is not None:
        raise ConfigurationError(
            f"save_dir={str(save_dir)!r} is not a local folder, from which states are sent to an object store. Pass "
            f"SaveTrainingStateCallback('training_states', upload_to={str(save_dir)!r})."
        )
    if upload_to is not None and url_of(upload_to) is None:
        raise ConfigurationError(
            f"upload_to={str(upload_to)!r} is not the URL of an object store (e.g. 's3://bucket/states'). Put the "
            "kind of store and :// in front of it, or pass a local folder as save_dir."
        )
    if upload_errors not in ("warn", "raise"):
        raise ConfigurationError(f'upload_errors must be "warn" or "raise", got {upload_errors!r}.')


class Uploads:
    """Sends the states of a run in a thread, one after the other, in the order in which they were added.

    Every process calls ``begin`` and leaves the context; only the first process sends. Queued states that the store
    would not keep in the end are not sent.

    Args:
        url: The object store.
        max_checkpoints: The number of states of the run to keep there; None for all.
        errors: Whether a state that could not be sent causes a warning or an error.
        report: The function that prints a line.

    Attributes:
        store: The object store.
        next_sequence: On the first process, the sequence number of the next state, from ``begin``.
        longest: The seconds that the longest upload of this run has taken; None before the first.

    Example:
        >>> import tempfile
        >>> from pa_checkpoint import save
        >>> folder = tempfile.TemporaryDirectory()
        >>> with Uploads("memory://bucket/uploads", max_checkpoints=1) as uploads:
        ...     for update in (100, 200):
        ...         path = Path(folder.name, f"step_{update}")
        ...         save(path, {"position": update}, summary={"run": "first", "update": update})
        ...         uploads.add(path, "first")
        >>> [state.name for state in uploads.store.states()]
        ['step_200']
        >>> folder.cleanup()
    """

    def __init__(
        self,
        url: str,
        max_checkpoints: int | None,
        errors: Literal["warn", "raise"] = "warn",
        report: Callable[[str], None] = print,
    ) -> None:
        self.store: RemoteFolder = RemoteFolder(url)
        self.next_sequence: int = 1
        self.longest: float | None = None
        self._max_checkpoints = max_checkpoints
        self._errors = errors
        self._report = report
        self._changed = threading.Condition()
        self._unsent: list[tuple[Path, str]] = []  # the first state is being sent
        self._newest: tuple[Path, str] | None = None
        self._problems: dict[Path, CheckpointError] = {}

    def begin(self, folder: Path, continued: Path | None) -> None:
        """Send earlier states of the run that were not sent, and look up the next sequence number in the store.

        Args:
            folder: The folder of the states.
            continued: On the first process, the state that the run continues, if it is the newest state of the run.

        Raises:
            CheckpointError: The store cannot be queried.
        """
        run_while_others_wait(partial(self._begin, folder, continued) if distributed.rank() == 0 else None)

    def _begin(self, folder: Path, continued: Path | None) -> None:
        if continued is not None:
            records = [record for record in Folder(folder).records() if record.problem is None]
            run = next((record.run for record in records if record.path == continued), None)
            sent = {(state.age, state.name) for state in self.store.states() if state.is_of(run or "")}
            own = [record for record in records if record.run == run]
            for record in own[-self._max_checkpoints :] if self._max_checkpoints else own:
                if ((record.sequence, record.update), record.path.name) not in sent:
                    self.add(record.path, record.run)
        self.next_sequence = self.store.next_sequence()

    @property
    def unsent(self) -> list[Path]:
        """The states that are queued or being sent, oldest first; they must stay on the disk."""
        with self._changed:
            return [path for path, _ in self._unsent]

    def add(self, state: Path, run: str) -> None:
        """Queue a state to be sent, on the process that wrote it.

        Args:
            state: Its directory, which must exist while it is in ``unsent``.
            run: The run that wrote it.

        Raises:
            CheckpointError: An earlier state could not be sent, and ``errors`` is "raise".
        """
        self._send_later(state, run)
        if self._errors == "raise":
            for problem in self._pop_problems():
                raise problem

    def tell_problems(self) -> None:
        """Warn about the states that could not be sent, unless ``errors`` is "raise"."""
        if self._errors == "warn":
            self._warn_of_problems()

    def retry(self) -> None:
        """Queue the newest state again if sending it failed."""
        if self._newest is not None and self._newest[0] in self._problems:
            self._send_later(*self._newest)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until all states are sent; the other processes also wait, unless this process failed."""
        self._wait(_SECONDS_WITHOUT_A_WORD)
        if unsent := self.unsent:
            self._report(f"Waiting until {unsent[-1].name} is sent to {without_secrets(self.store.url)}.")
        self._wait()
        if exception is not None and not isinstance(exception, TrainingPreempted):
            for problem in self._pop_problems():
                exception.add_note(f"Besides: {problem.problem} ({problem.given})")
            return
        self.retry()
        self._wait()
        run_while_others_wait(None)
        if exception is None and self._errors == "raise":
            raise_on_all(next(iter(self._pop_problems()), None))
        self._warn_of_problems()
        if self._newest is not None and self._max_checkpoints is not None:
            # States that were kept on the disk because they were not sent yet.
            state, run = self._newest
            try:
                Folder(state.parent).keep(self._max_checkpoints, run)
            except CheckpointError as error:
                warn_that_it_continues(error)

    def _warn_of_problems(self) -> None:
        for problem in self._pop_problems():
            warn_that_it_continues(problem)

    def _pop_problems(self) -> list[CheckpointError]:
        """Return the errors that were raised since the last call, except for states that were sent after all."""
        with self._changed:
            problems, self._problems = self._problems, {}
            return [*problems.values()]

    def _wait(self, seconds: float | None = None) -> None:
        """Wait until all states are sent or have failed, but at most for some seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unsent, seconds)

    def _send_later(self, state: Path, run: str) -> None:
        with self._changed:
            self._newest = (state, run)
            self._unsent.append(self._newest)
            if self._max_checkpoints is not None:
                del self._unsent[1 : -self._max_checkpoints]
            if len(self._unsent) == 1:
                # A daemon, so that an interrupted wait ends the process.
                threading.Thread(target=self._send_all, name="pa_core state uploads", daemon=True).start()

    def _send_all(self) -> None:
        while True:
            state, run = self._unsent[0]
            problem = self._send(state, run)
            with self._changed:
                self._problems.pop(state, None)
                if problem is not None:
                    self._problems[state] = problem
                del self._unsent[0]
                self._changed.notify_all()
                if not self._unsent:
                    return

    def _send(self, state: Path, run: str) -> CheckpointError | None:
        began = time.monotonic()
        try:
            self.store.upload(state)
            self.longest = max(self.longest or 0.0, time.monotonic() - began)
        except Exception as error:  # any error is reported to the run
            if isinstance(error, CheckpointNotFoundError) and len(self._unsent) > 1:
                return None  # it was removed, because newer states are queued
            problem = f"A training state was not sent to the object store {self.store.url}."
            return self.store.explained(problem, state, error)
        try:
            if self._max_checkpoints is not None:
                self.store.keep(self._max_checkpoints, run)
        except Exception as error:  # any error is reported to the run
            problem = "Training states that are no longer needed were not removed from the object store."
            return self.store.explained(problem, self.store.url, error)
        return None


def warn_that_it_continues(error: CheckpointError) -> None:
    """Warn about states that were not removed or sent, which does not end the run."""
    warn_user(f"{error.problem.rstrip('.')} ({error.given}); the run continues. {error.do}")
