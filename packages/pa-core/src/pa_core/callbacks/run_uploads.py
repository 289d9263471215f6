"""What a run sends to an object store: begun when it starts, told of when it fails, and waited for at its end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from pa_checkpoint import RemoteFolder
from pa_core import distributed
from pa_core.callbacks.uploads import Uploads
from pa_core.distributed.long_waits import wait_together
from pa_core.errors import CheckpointError, ConfigurationError, TrainingPreempted
from pa_core.storage import StateFolder
from pa_core.storage.urls import url_of
from pa_core.training_state.state_writer import raise_on_all
from pa_core.user_warnings import warn_user

__all__ = ["RunUploads", "check_upload_arguments"]

_SECONDS_WITHOUT_A_WORD = 2.0


def check_upload_arguments(save_dir: str | Path, upload_to: str | None, upload_errors: str) -> None:
    """Raise an error for a local folder that is a URL, a URL that is a local folder, or an unknown word.

    Args:
        save_dir: Where states are saved.
        upload_to: Where they are sent.
        upload_errors: What becomes of states that could not be sent.

    Raises:
        ConfigurationError: One of them cannot be used.
    """
    if url_of(save_dir) is not None:
        raise ConfigurationError(
            f"save_dir={str(save_dir)!r} is not a local folder, from which states are sent to an object store. Pass "
            f"SaveTrainingStateCallback('training_states', upload_to={str(save_dir)!r})."
        )
    if upload_to is not None and url_of(upload_to) is None:
        raise ConfigurationError(
            f"upload_to={str(upload_to)!r} is not the URL of an object store, such as 's3://bucket/states'. Put the "
            "kind of store and :// in front of it, or pass a local folder as save_dir."
        )
    if upload_errors not in ("warn", "raise"):
        raise ConfigurationError(f'upload_errors must be "warn" or "raise", got {upload_errors!r}.')


class RunUploads:
    """The states that a run sends; every process calls ``begin`` and leaves the context, and the first one sends.

    Args:
        url: The object store.
        max_checkpoints: How many states of the run stay there; None for all.
        errors: Whether a state that could not be sent causes a warning or an error.
        say: Prints a line.
    """

    def __init__(
        self, url: str, max_checkpoints: int | None, errors: Literal["warn", "raise"], say: Callable[[str], None]
    ) -> None:
        self._uploads = Uploads(RemoteFolder(url), max_checkpoints)
        self._max_checkpoints = max_checkpoints
        self._errors = errors
        self._say = say
        self._added: tuple[Path, str] | None = None

    def begin(self, folder: Path, continued: Path | None) -> int:
        """Send what the run has saved before and not sent; return the next sequence in the store.

        Args:
            folder: Where the states are saved.
            continued: On the first process, the state that the run continues, if it is the newest one of the run.

        Raises:
            CheckpointError: The store cannot be queried.
        """
        sequence, problem = 1, None
        if distributed.rank() == 0:
            try:
                sequence = self._begin(folder, continued)
            except CheckpointError as error:
                problem = error
        raise_on_all(problem)
        return sequence

    def _begin(self, folder: Path, continued: Path | None) -> int:
        store = self._uploads.store
        if continued is not None:
            records = [record for record in StateFolder(folder).records() if record.problem is None]
            run = next((record.run for record in records if record.path == continued), None)
            sent = {(state.age, state.name) for state in store.states() if state.is_of(run or "")}
            own = [record for record in records if record.run == run]
            for record in own[-self._max_checkpoints :] if self._max_checkpoints else own:
                if ((record.sequence, record.update), record.path.name) not in sent:
                    self.add(record.path, record.run)
        return store.next_sequence()

    @property
    def unsent(self) -> Collection[Path]:
        """The states that have to stay on the disk until they are sent."""
        return self._uploads.unsent

    def add(self, state: Path, run: str) -> None:
        """Have a state sent, on the process that has written it.

        Args:
            state: The state.
            run: Its run.

        Raises:
            CheckpointError: An earlier one could not be sent, and that is to be raised.
        """
        self._added = state, run
        self._uploads.add(state, run)
        if self._errors == "raise":
            for problem in self._uploads.take_problems():
                raise problem

    def tell_problems(self) -> None:
        """Warn about the states that could not be sent, unless that is raised."""
        if self._errors == "warn":
            self._warn(self._uploads.take_problems())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until all states are sent; where the other processes come here too, they wait as well."""
        self._uploads.wait(_SECONDS_WITHOUT_A_WORD)
        if unsent := self._uploads.unsent:
            self._say(f"Waiting until {unsent[-1].name} is sent to {self._uploads.store.url}.")
        if exception is not None and not isinstance(exception, TrainingPreempted):
            self._uploads.wait()
            for problem in self._uploads.take_problems():
                exception.add_note(f"Besides: {problem.problem} ({problem.given})")
            return
        wait_together(self._uploads.wait)
        self._uploads.retry()
        wait_together(self._uploads.wait)
        if exception is None and self._errors == "raise":
            raise_on_all(next(iter(self._uploads.take_problems()), None))
        self._warn(self._uploads.take_problems())
        self._tidy_up()

    def _tidy_up(self) -> None:
        """Remove states that were kept on the disk because they were not sent yet."""
        if self._added is None or self._max_checkpoints is None:
            return
        state, run = self._added
        try:
            StateFolder(state.parent).keep(self._max_checkpoints, run)
        except CheckpointError as error:
            self._warn([error])

    @staticmethod
    def _warn(problems: Iterable[CheckpointError]) -> None:
        for one in problems:
            warn_user(f"{one.problem.rstrip('.')} ({one.given}); the run continues. {one.do}")
