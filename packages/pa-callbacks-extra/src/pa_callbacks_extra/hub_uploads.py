"""Pushes folders to the Hugging Face Hub while the training continues."""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from pa_callbacks_extra.hub_process import HubError, HubProcess

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0


@dataclass(frozen=True)
class Push:
    """A folder to push.

    Attributes:
        folder: The folder, which is removed when it has been pushed or a newer one has taken its place.
        message: The message of the commit.
        marks: What the generated part of its model card begins and ends with.
    """

    folder: Path
    message: str
    marks: tuple[str, str]


@dataclass(frozen=True)
class Failure:
    """A push that failed, whose folder still exists.

    Attributes:
        push: The push.
        problem: The reason.
    """

    push: Push
    problem: str


class HubUploads:
    """Pushes folders in a thread, one after the other; of those that wait, only the newest.

    Args:
        repo_id: The repository.
        seconds: The time for each push. Within it, a push is tried again unless the Hub would give the same answer.

    Attributes:
        url: The address of the last commit; empty before it.
    """

    def __init__(self, repo_id: str, seconds: float) -> None:
        self.url: str = ""
        self._repo_id = repo_id
        self._seconds = seconds
        self._changed = threading.Condition()
        self._waiting: Push | None = None
        self._under_way: Push | None = None
        self._process: HubProcess | None = None
        self._failure: Failure | None = None
        self._last_problem = ""
        self._has_ended = False

    @property
    def failure(self) -> Failure | None:
        """The last push, if it failed."""
        return self._failure

    def add(self, push: Push) -> None:
        """Push a folder when the push in progress has ended, in place of a folder that still waits."""
        with self._changed:
            superseded, self._waiting = self._waiting, push
            if self._under_way is None:
                # A daemon, so that an interrupted wait ends the process.
                threading.Thread(target=self._push_all, name="pushes to the Hub", daemon=True).start()
                self._under_way, self._waiting = push, None
            self._changed.notify_all()
        if superseded is not None:
            _remove(superseded.folder)

    def retry(self) -> None:
        """Push a folder again whose push has failed."""
        if self._failure is not None:
            self.add(self._failure.push)

    def wait(self) -> Failure | None:
        """Wait for the pushes, at most as long as a push may take, and return the folder that was not pushed."""
        with self._changed:
            self._changed.wait_for(lambda: self._under_way is None, self._seconds)
        return self.end(f"It was not complete {self._seconds:g} seconds after the end of the run.")

    def end(self, reason: str) -> Failure | None:
        """End the push in progress, and return the folder that was not pushed.

        Args:
            reason: Why it ends.
        """
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
            if self._process is not None:
                self._process.end()
            unpushed = self._waiting or self._under_way
            problem = f"{reason} {self._last_problem}".strip()
            return self._failure if unpushed is None else Failure(unpushed, problem)

    def _push_all(self) -> None:
        while True:
            with self._changed:
                push = self._under_way
            if push is None:
                return
            problem = self._push(push)
            with self._changed:
                if self._has_ended:
                    return
                is_superseded = self._waiting is not None
                self._failure = Failure(push, problem) if problem and not is_superseded else None
                if not problem or is_superseded:
                    _remove(push.folder)
                self._under_way, self._waiting = self._waiting, None
                self._changed.notify_all()

    def _push(self, push: Push) -> str:
        """Return the reason why a folder was not pushed; an empty string if it was."""
        deadline, pause, self._last_problem = time.monotonic() + self._seconds, _FIRST_PAUSE, ""
        while True:
            try:
                self.url = self._send(push, deadline - time.monotonic())
            except HubError as error:
                self._last_problem = str(error)
                if error.is_final or time.monotonic() + pause >= deadline or self._is_pointless_within(pause):
                    return str(error)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                return ""

    def _send(self, push: Push, seconds: float) -> str:
        with self._changed:
            if self._has_ended:
                raise HubError("The run has ended.", is_final=True)
            process = HubProcess(repo_id=self._repo_id, folder=str(push.folder), message=push.message, marks=push.marks)
            self._process = process
        try:
            return process.answer(seconds)
        finally:
            with self._changed:
                self._process = None

    def _is_pointless_within(self, seconds: float) -> bool:
        """Wait for some seconds, and return whether a push need not be tried again."""
        with self._changed:
            return self._changed.wait_for(lambda: self._has_ended or self._waiting is not None, seconds)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
