"""Writing while the training goes on."""

from __future__ import annotations

import atexit
import threading
import traceback
from collections.abc import Callable

__all__ = ["BackgroundWriter"]


class BackgroundWriter:
    """Runs one job at a time in a thread of its own, and tells of its failure once.

    A job that is running when the interpreter ends is completed first; if it fails and nobody was told before the
    end, its traceback is printed.

    Example:
        >>> done = []
        >>> writer = BackgroundWriter()
        >>> writer.submit(lambda: done.append("first"))
        >>> writer.submit(lambda: done.append("second"))
        >>> writer.wait()
        >>> done
        ['first', 'second']
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Start a job, after waiting for the previous one.

        Raises:
            BaseException: What the previous job raised, if nobody was told yet; the new job is not started then.
        """
        self.wait()
        # A thread for each job, and no daemon: the interpreter waits for it, and none is left waiting for work.
        self._thread = threading.Thread(target=self._run, args=(job,), name="pa_core background writer")
        self._thread.start()

    def wait(self) -> None:
        """Return when no job is running.

        Raises:
            BaseException: What the job raised, if nobody was told yet.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._raise_error()

    def poll(self) -> None:
        """Return at once.

        Raises:
            BaseException: What a job that has ended raised, if nobody was told yet.
        """
        if self._thread is None or not self._thread.is_alive():
            self.wait()

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # whatever it is, the thread that waits for the job is told
            self._error = error
            atexit.register(self._print_error)

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            atexit.unregister(self._print_error)
            raise error

    def _print_error(self) -> None:
        traceback.print_exception(self._error)
