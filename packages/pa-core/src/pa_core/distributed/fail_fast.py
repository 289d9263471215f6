"""What a process that fails does in a run of several: it ends, so that none waits for it, unless all of them fail."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist

from pa_core.distributed import shared_errors
from pa_core.distributed.collectives import num_processes

__all__ = ["SECONDS_TO_CLEAN_UP", "SECONDS_TO_FAIL_TOGETHER", "ending_process_unless_all_fail", "tell_launcher"]

SECONDS_TO_FAIL_TOGETHER = 3.0
"""How much later than the first process the last one may fail for all of them to have failed together."""

SECONDS_TO_CLEAN_UP = 30.0
"""How long callbacks may take to close what is open, before a process that failed alone ends in any case."""

_SECONDS_TO_COMPARE = 1.0
"""All processes have failed by then, and only have to look whether it was for the same reason."""


@contextmanager
def ending_process_unless_all_fail(exception: BaseException) -> Generator[bool]:
    """Handle an exception that leaves a run; afterwards end the process, unless all processes of the run failed.

    A process that failed alone must not live on. The others wait for it in a collective, perhaps for many minutes, and
    the launcher ends them only once this process has ended: which a thread of the user's, or an ``except`` around the
    run, may keep it from. With one process, and where all fail, the exception is left to the caller; where it is the
    same on all, the first process alone will show it.

    The traceback is printed, and written to where torchrun looks for it, before the block is entered. Neither
    ``atexit`` functions nor the ``finally`` of callers run.

    Args:
        exception: What is about to leave the run. The block closes what is open; it cannot communicate.

    Yields:
        Whether this process lives on, because all processes have failed.

    Example:
        >>> try:
        ...     raise OSError("no space left")
        ... except OSError as error:
        ...     with ending_process_unless_all_fail(error):
        ...         print("closing files")
        closing files
    """
    if num_processes() == 1:
        yield True
        return
    deadline = threading.Timer(SECONDS_TO_FAIL_TOGETHER + SECONDS_TO_CLEAN_UP, _show_and_exit, [exception])
    deadline.daemon = True
    deadline.start()
    tell_launcher(exception)
    failed_alone: int | None = dist.get_rank()
    with suppress(BaseException):  # whoever keeps the store has ended, or Ctrl-C was pressed again
        failed_alone = shared_errors.rank_that_comes_alone(shared_errors.FAILURE, SECONDS_TO_FAIL_TOGETHER)
    if failed_alone is None:
        deadline.cancel()
        # Its thread refers to the exception, and so to all frames of the run. If it let go of them last, it would close
        # their generators and loaders, and as a daemon thread perhaps while Python ends, which aborts the process.
        deadline.join()
        _withdraw_from_launcher()
        shared_errors.show_once(exception, _SECONDS_TO_COMPARE)
        yield True
        return
    _report(exception, failed_alone)
    try:
        yield False
    except BaseException as another:  # the process ends here, and nothing can be raised any more
        exception = another
        _show(another)
    _exit(exception)


def tell_launcher(exception: BaseException) -> None:
    """Write an error where torchrun looks for the cause; it takes the oldest of all ranks for it.

    Args:
        exception: The error, which is being handled.
    """
    with suppress(Exception):
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(exception)


def _withdraw_from_launcher() -> None:
    """The caller may catch the error, and another one end the process."""
    if written := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        Path(written).unlink(missing_ok=True)


def _report(exception: BaseException, failed_alone: int) -> None:
    _show(exception)
    rank = dist.get_rank()
    if failed_alone == rank:
        reason = f"not all processes have failed within {SECONDS_TO_FAIL_TOGETHER:g} seconds, and none may wait for it"
    else:
        reason = f"rank {failed_alone} failed before, which may be the cause: see its traceback"
    _write(f"[rank{rank}]: This process ends with status {_exit_status(exception)}: {reason}.\n")


def _show(exception: BaseException) -> None:
    """Print a traceback as at the end of a script; torch puts the rank before each line."""
    with suppress(Exception):
        sys.excepthook(type(exception), exception, exception.__traceback__)


def _show_and_exit(exception: BaseException) -> None:
    _show(exception)
    _write(f"[rank{dist.get_rank()}]: Cleaning up took more than {SECONDS_TO_CLEAN_UP:g} seconds.\n")
    _exit(exception)


def _exit(exception: BaseException) -> NoReturn:
    """End the process now, no matter which threads are alive; what was printed is not lost."""
    try:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
    finally:
        os._exit(_exit_status(exception))


def _exit_status(exception: BaseException) -> int:
    """The status that Python would end with, and never 0, which the launcher would take for a success."""
    if isinstance(exception, SystemExit):
        code = exception.code
        return code % 256 or 1 if isinstance(code, int) else 1
    return 130 if isinstance(exception, KeyboardInterrupt) else 1


def _write(text: str) -> None:
    with suppress(Exception):
        sys.stderr.write(text)
