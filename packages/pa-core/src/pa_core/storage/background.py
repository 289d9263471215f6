"""Writing while the training goes on."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["BackgroundWriter"]


class BackgroundWriter:
    """Runs one job at a time in a thread of its own.

    A job that is running when the interpreter ends is completed first.
    """

    def submit(self, job: Callable[[], None]) -> None:
        """Start a job, after waiting for the previous one.

        Raises:
            BaseException: What the previous job raised, if nobody was told yet; the new job is not started then.
        """
        raise NotImplementedError

    def wait(self) -> None:
        """Return when no job is running.

        Raises:
            BaseException: What the job raised, if nobody was told yet.
        """
        raise NotImplementedError

    def poll(self) -> None:
        """Return at once.

        Raises:
            BaseException: What a job that has ended raised, if nobody was told yet.
        """
        raise NotImplementedError
