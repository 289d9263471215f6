"""Sending training states to an object store while the training continues."""

from __future__ import annotations

import threading
from pathlib import Path

from pa_checkpoint import CheckpointError, CheckpointNotFoundError, RemoteFolder

__all__ = ["Uploads"]


class Uploads:
    """Sends states in a thread, one after the other, in the order in which they were added.

    States that wait, and that the store would not keep anyway when all are sent, are not sent.

    Args:
        store: Where they are sent.
        max_checkpoints: How many states of the run the store keeps; None for all.

    Example:
        >>> import tempfile
        >>> from pa_checkpoint import save
        >>> folder = tempfile.TemporaryDirectory()
        >>> uploads = Uploads(RemoteFolder("memory://bucket/uploads"), max_checkpoints=1)
        >>> for update in (100, 200):
        ...     path = Path(folder.name, f"step_{update}")
        ...     save(path, {"position": update}, summary={"run": "first", "update": update})
        ...     uploads.add(path, "first")
        >>> uploads.wait(), uploads.take_problems()
        (True, [])
        >>> [state.name for state in uploads.store.states()]
        ['step_200']
        >>> folder.cleanup()
    """

    def __init__(self, store: RemoteFolder, max_checkpoints: int | None) -> None:
        self.store = store
        self._max_checkpoints = max_checkpoints
        self._changed = threading.Condition()
        self._waiting: list[tuple[Path, str]] = []
        self._sending: tuple[Path, str] | None = None
        self._failed: tuple[Path, str] | None = None
        self._problems: list[tuple[Path, CheckpointError]] = []

    @property
    def unsent(self) -> list[Path]:
        """The states that wait or are being sent, oldest first."""
        with self._changed:
            return [path for path, _ in ([self._sending] if self._sending else []) + self._waiting]

    def add(self, state: Path, run: str) -> None:
        """Have a state sent.

        Args:
            state: Its directory, which has to stay as long as it is one of ``unsent``.
            run: The run that wrote it.
        """
        with self._changed:
            self._failed = None
            self._waiting.append((state, run))
            if self._max_checkpoints is not None:
                del self._waiting[: -self._max_checkpoints]
            if self._sending is None:
                self._sending = self._waiting.pop(0)
                # A daemon: who gives up waiting wants the process to end.
                threading.Thread(target=self._send_all, name="pa_core state uploads", daemon=True).start()

    def retry(self) -> None:
        """Have the newest state sent again if that failed, and none was added since."""
        failed = self._failed
        if failed is not None:
            self.add(*failed)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all states are sent, or have failed.

        Args:
            seconds: How long at most.

        Returns:
            Whether they are.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self._sending is None, seconds)

    def take_problems(self) -> list[CheckpointError]:
        """Return the errors that were raised since the last call, except for states that were sent after all."""
        with self._changed:
            problems, self._problems = self._problems, []
            return [problem for _, problem in problems]

    def _send_all(self) -> None:
        while (sending := self._sending) is not None:
            problem = self._send(*sending)
            with self._changed:
                self._failed = None if problem is None else sending
                others = [one for one in self._problems if one[0] != sending[0]]
                self._problems = others if problem is None else [*others, (sending[0], problem)]
                self._sending = self._waiting.pop(0) if self._waiting else None
                self._changed.notify_all()

    def _send(self, state: Path, run: str) -> CheckpointError | None:
        try:
            self.store.upload(state)
        except CheckpointNotFoundError as error:
            with self._changed:
                is_superseded = bool(self._waiting)
            return None if is_superseded else _explained("A training state was not sent.", str(state), error)
        except Exception as error:  # whatever it is, the run is told
            return _explained(
                "A training state was not sent to the object store.", f"{state}, to {self.store.url}", error
            )
        try:
            if self._max_checkpoints is not None:
                self.store.keep(self._max_checkpoints, run)
        except Exception as error:  # as above
            problem = "Training states that are no longer needed were not removed from the object store."
            return _explained(problem, self.store.url, error)
        return None


def _explained(problem: str, place: str, error: Exception) -> CheckpointError:
    if isinstance(error, CheckpointError | CheckpointNotFoundError):
        reason, expected, do = f"{error.problem} {error.given}", error.expected, error.do
    else:
        reason = f"{type(error).__name__}: {error}"
        expected, do = "a state that can be read as it was written", "See whether the state is still there."
    explained = CheckpointError(problem, given=f"{place}: {reason}", expected=expected, do=do)
    explained.__cause__ = error
    return explained
