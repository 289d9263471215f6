"""The handling of exceptions in a run of several processes.

An exception that all processes raise is printed once and left to the caller. A process that fails alone ends, so that
no other process waits for it.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, NoReturn, Protocol, runtime_checkable

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from pa_distributed._processes import num_processes
from pa_distributed._torch import store_of_processes

SECONDS_TO_FAIL_TOGETHER = 3.0
"""How much later than the first process the last process may fail, if all of them count as failed together."""

SECONDS_TO_CLEAN_UP = 30.0
"""How long the cleanup of a process that failed alone may take before the process ends in any case."""

_SECONDS_TO_COMPARE = 1.0
"""How long to compare the errors after all processes have failed."""

_SECONDS_UNTIL_SHOWN = 10.0
_SECONDS_UNTIL_NOTED = 3.0
_SECONDS_BETWEEN_LOOKS = 0.02
_FAILURES = "failures"
_SHARED = "_shared_by_processes"


@contextmanager
def fail_fast(on_failure: Callable[[BaseException, bool], None] | None = None) -> Generator[None]:
    """End this process at once if an exception leaves the ``with`` block on this process, but not on all processes.

    Put your training loop into this block, on every process. If a single rank fails, the other ranks wait for it in the
    next collective, often for many minutes, and the launcher ends them only after the failed process has ended. The
    exception alone may not end the process: a thread that is still running keeps a process alive, and so does an
    ``except`` clause around the loop. This block therefore prints the traceback, writes the error to the file that
    torchrun reads, calls ``on_failure``, and ends the process with ``os._exit``, which runs neither ``atexit``
    functions nor ``finally`` clauses of callers. The exit status is 1; 130 after Ctrl-C; and after ``SystemExit`` its
    code, with 1 in place of 0. For hangs without an exception, use a ``HangDetector`` as well.

    If all processes fail within three seconds, or if there is one process, the exception is raised as usual, and the
    caller may catch it. If all of them raise the same exception, only rank 0 prints its traceback.

    Args:
        on_failure: A function that, for example, closes open files. It is called as ``on_failure(error, continues)``,
            with the exception, and with True if this process continues because all processes have failed, or False if
            it ends. It must not communicate with other processes. Its result is ignored. If the process ends, the
            function has 30 seconds. If the function raises an exception, that exception replaces the original
            exception. The default, None, calls nothing.

    Raises:
        BaseException: The exception of the block, if all processes have failed or if there is one process.

    Example:
        >>> from pa_distributed import fail_fast
        >>> def close_files(error: BaseException, continues: bool) -> None:
        ...     print(f"closing files after {type(error).__name__}")
        >>> try:
        ...     with fail_fast(close_files):
        ...         raise OSError("no space left")
        ... except OSError as error:  # on one process the error is raised as usual
        ...     print(error)
        closing files after OSError
        no space left
    """
    try:
        yield
    except BaseException as exception:
        with _ending_unless_all_fail(exception) as lives_on:
            if on_failure is not None:
                on_failure(exception, lives_on)
        raise


@contextmanager
def _ending_unless_all_fail(exception: BaseException) -> Generator[bool]:
    """Yield whether all processes fail; if they do not, end this process after the block."""
    if num_processes() == 1:
        yield True
        return
    rank = dist.get_rank()
    deadline = threading.Timer(SECONDS_TO_FAIL_TOGETHER + SECONDS_TO_CLEAN_UP, _show_and_exit, [exception])
    deadline.daemon = True
    deadline.start()
    tell_launcher(exception)
    failed_alone: int | None = rank
    with suppress(BaseException):  # the process that keeps the store has ended, or Ctrl-C was pressed again
        failed_alone = _rank_that_comes_alone(_FAILURES, SECONDS_TO_FAIL_TOGETHER)
    if failed_alone is None:
        deadline.cancel()
        # Its thread refers to the exception, and so to all frames of the run. If it let go of them last, it would close
        # their generators and loaders, and as a daemon thread perhaps while Python ends, which aborts the process.
        deadline.join()
        if written := os.environ.get("TORCHELASTIC_ERROR_FILE"):  # the caller may catch this error, and fail later
            Path(written).unlink(missing_ok=True)
        _show_once(exception, _SECONDS_TO_COMPARE)
        yield True
        return
    _show_uncaught(exception)
    if failed_alone == rank:
        reason = f"not all processes have failed within {SECONDS_TO_FAIL_TOGETHER:g} seconds, and none may wait for it"
    else:
        reason = f"rank {failed_alone} failed before, which may be the cause: see its traceback"
    _write(f"[rank{rank}]: This process ends with status {_exit_status(exception)}: {reason}.\n")
    try:
        yield False
    except BaseException as another:  # the process ends here, and nothing can be raised any more
        exception = another
        _show_uncaught(another)
    _exit(exception)


def tell_launcher(exception: BaseException) -> None:
    """Write an error to the file in which torchrun looks for the cause; torchrun shows the oldest error of all ranks.

    Args:
        exception: The error, which is being handled.
    """
    with suppress(Exception):
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(exception)


def _show_uncaught(exception: BaseException) -> None:
    """Print a traceback as Python does at the end of a script; torch puts the rank before each line."""
    with suppress(Exception):
        sys.excepthook(type(exception), exception, exception.__traceback__)


def _show_and_exit(exception: BaseException) -> None:
    """Print a traceback, and end the process although the cleanup has not finished."""
    _show_uncaught(exception)
    _write(f"[rank{dist.get_rank()}]: Cleaning up took more than {SECONDS_TO_CLEAN_UP:g} seconds.\n")
    _exit(exception)


def _exit(exception: BaseException) -> NoReturn:
    """End the process now, even if threads are alive, and after its output is written."""
    try:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
    finally:
        os._exit(_exit_status(exception))


def _exit_status(exception: BaseException) -> int:
    """Return the status with which Python would end, but never 0, which a launcher would read as a success."""
    if isinstance(exception, SystemExit):
        code = exception.code
        return code % 256 or 1 if isinstance(code, int) else 1
    return 130 if isinstance(exception, KeyboardInterrupt) else 1


def _write(text: str) -> None:
    """Print a text on the standard error stream."""
    with suppress(Exception):
        sys.stderr.write(text)


@contextmanager
def print_errors_once() -> Generator[None]:
    """If all processes raise the same error, print it once instead of once per process; each process still raises it.

    Use it in a ``with`` statement, on every process, for code that runs before a training loop, for example a check of
    the configuration. Eight copies of a traceback are hard to read. For the loop itself, use ``fail_fast``, which does
    the same and also ends a process that fails alone.

    If all processes raise the same error within three seconds, rank 0 prints the traceback when its script ends, and
    each other rank prints one line that refers to it. If a process raises a different error, or none, its output is as
    usual. On one process the block has no effect.

    Raises:
        Exception: The error of the block, unchanged.

    Example:
        >>> from pa_distributed import print_errors_once
        >>> def check(batch_size: int) -> None:
        ...     if batch_size < 1:
        ...         raise ValueError(f"The batch size must be positive, got {batch_size}.")
        >>> with print_errors_once():
        ...     check(batch_size=0)
        Traceback (most recent call last):
        ...
        ValueError: The batch size must be positive, got 0.
    """
    try:
        yield
    except Exception as error:
        _show_once(error, SECONDS_TO_FAIL_TOGETHER)
        raise


def _show_once(error: BaseException, seconds: float) -> None:
    """Let only the first process print an error, if all processes raise the same error and none of them catches it.

    Two errors are the same if they have the same type, message, notes and traceback. In an error that separates the
    given value from its problem, the value may differ between processes, and each process prints its value. The problem
    may differ, too, if there is no separate value. A process that does not learn in time that rank 0 has printed the
    error prints it itself.

    Args:
        error: The error that this process is about to raise.
        seconds: How many seconds the other processes may take to raise it.
    """
    if not isinstance(error, Exception) or num_processes() == 1:
        return
    with suppress(Exception):  # the process that keeps the store has ended: each process shows its error
        digest = hashlib.sha256(_text_to_compare(error).encode()).hexdigest()
        event = f"errors/{_times[_FAILURES]}/{digest}"
        if _rank_that_comes_alone(event, seconds) is None:
            setattr(error, _SHARED, _Shared(_store_of(event), dist.get_rank(), dist.get_world_size(), _line(error)))
            if getattr(sys.excepthook, "func", None) is not _show:
                sys.excepthook = partial(_show, sys.excepthook)


_times: Counter[str] = Counter()
"""How many times this process has met each event; the same on all processes that have met all events together."""


def _rank_that_comes_alone(event: str, seconds: float) -> int | None:
    """Wait a little for all processes to meet an event; return the first rank that gives up, or None if all arrived."""
    _times[event] += 1
    store = _store_of(event)
    if store.add("come", 1) == dist.get_world_size():
        store.compare_set("verdict", "", "all")
    _becomes_true(lambda: store.check(["verdict"]), seconds)
    # Only the first process to set it decides, so that all processes have the same verdict.
    decided = store.compare_set("verdict", "", str(dist.get_rank())).decode()
    return None if decided == "all" else int(decided)


def _store_of(event: str) -> Store:
    """Return the part of the store for an event."""
    return PrefixStore(f"pa_distributed/{event}/{_times[event]}", store_of_processes())


class _Shared(NamedTuple):
    """The values that are needed to print an error once at the end of the script."""

    store: Store
    rank: int
    world: int
    line: str


def _show(
    show_in_full: Callable[[type[BaseException], BaseException, TracebackType | None], object],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """Print an exception that was not caught; the launcher ends all processes once the first process has ended."""
    shared = getattr(error, _SHARED, None)
    if not isinstance(shared, _Shared):
        show_in_full(kind, error, trace)
        return
    store, rank, world, line = shared
    is_shown = False
    with suppress(Exception):  # the first process has ended, and kept the store
        is_shown = rank > 0 and _becomes_true(lambda: store.add("shown", 0) > 0, _SECONDS_UNTIL_SHOWN)
    if is_shown:
        _write(f"[rank{rank}]: {line}\n")
    else:
        show_in_full(kind, error, trace)
    with suppress(Exception):
        sys.stderr.flush()
        store.add("shown", 1)
        _becomes_true(lambda: rank > 0 or store.add("shown", 0) == world, _SECONDS_UNTIL_NOTED)


def _becomes_true(condition: Callable[[], bool], seconds: float) -> bool:
    """Check a condition repeatedly; a store in which a call waits for too long may stop answering."""
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return True


@runtime_checkable
class _Explained(Protocol):
    """An error that separates the given value from the problem and the action to take."""

    problem: str
    given: str
    expected: str
    do: str


def _text_to_compare(error: Exception) -> str:
    """Return a text that is the same for the same errors."""
    if not isinstance(error, _Explained):
        return "".join(traceback.format_exception(error))
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    return repr((type(error), error.problem if error.given else "", error.expected, error.do, places))


def _line(error: Exception) -> str:
    """Return the line that stands for an error whose traceback rank 0 prints."""
    kind = f"{type(error).__module__}.{type(error).__qualname__}: the same error as on rank 0"
    given = error.given or error.problem if isinstance(error, _Explained) else ""
    return f"{kind}; given here: {' '.join(given.split())}" if given else kind
