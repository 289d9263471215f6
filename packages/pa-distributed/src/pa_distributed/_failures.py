"""What comes of an exception in a run of several processes.

One that all of them raise is shown once, and left to the caller. A process that fails alone ends, so that none waits
for it.
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
"""How much later than the first process the last one may fail for all of them to have failed together."""

SECONDS_TO_CLEAN_UP = 30.0
"""How long it may take to close what is open, before a process that failed alone ends in any case."""

_SECONDS_TO_COMPARE = 1.0
"""All processes have failed by then, and only have to look whether it was for the same reason."""

_SECONDS_UNTIL_SHOWN = 10.0
_SECONDS_UNTIL_NOTED = 3.0
_SECONDS_BETWEEN_LOOKS = 0.02
_FAILURES = "failures"
_SHARED = "_shared_by_processes"


@contextmanager
def fail_fast(on_failure: Callable[[BaseException, bool], None] | None = None) -> Generator[None]:
    """End this process if an exception leaves the context here and not on all processes.

    A process that failed alone must not live on. The others wait for it in a collective, perhaps for many minutes, and
    the launcher ends them only once this process has ended: which a thread of the user's, or an ``except`` further out,
    may keep it from. With one process, and where all fail within a few seconds, the exception is left to the caller;
    where it is the same on all, the first process alone will show it.

    The traceback is printed, and written to where torchrun looks for it, before anything is closed. Neither ``atexit``
    functions nor the ``finally`` of callers run.

    Args:
        on_failure: Closes what is open; it cannot communicate. It is called with the exception, and with whether this
            process lives on, because all processes have failed. Its exceptions take the place of the first.

    Example:
        >>> with fail_fast(lambda error, lives_on: print("closing files")):
        ...     raise OSError("no space left")
        Traceback (most recent call last):
        ...
        OSError: no space left
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
    if num_processes() == 1:
        yield True
        return
    rank = dist.get_rank()
    deadline = threading.Timer(SECONDS_TO_FAIL_TOGETHER + SECONDS_TO_CLEAN_UP, _show_and_exit, [exception])
    deadline.daemon = True
    deadline.start()
    tell_launcher(exception)
    failed_alone: int | None = rank
    with suppress(BaseException):  # whoever keeps the store has ended, or Ctrl-C was pressed again
        failed_alone = _rank_that_comes_alone(_FAILURES, SECONDS_TO_FAIL_TOGETHER)
    if failed_alone is None:
        deadline.cancel()
        # Its thread refers to the exception, and so to all frames of the run. If it let go of them last, it would close
        # their generators and loaders, and as a daemon thread perhaps while Python ends, which aborts the process.
        deadline.join()
        if written := os.environ.get("TORCHELASTIC_ERROR_FILE"):  # the caller may catch it, and another one end this
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
    """Write an error where torchrun looks for the cause; it takes the oldest of all ranks for it.

    Args:
        exception: The error, which is being handled.
    """
    with suppress(Exception):
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(exception)


def _show_uncaught(exception: BaseException) -> None:
    """Print a traceback as at the end of a script; torch puts the rank before each line."""
    with suppress(Exception):
        sys.excepthook(type(exception), exception, exception.__traceback__)


def _show_and_exit(exception: BaseException) -> None:
    _show_uncaught(exception)
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


@contextmanager
def print_errors_once() -> Generator[None]:
    """Within the context, an error that all processes raise is shown once; it is raised on each of them.

    Example:
        >>> with print_errors_once():
        ...     raise ValueError("on one process, nothing is different")
        Traceback (most recent call last):
        ...
        ValueError: on one process, nothing is different
    """
    try:
        yield
    except Exception as error:
        _show_once(error, SECONDS_TO_FAIL_TOGETHER)
        raise


def _show_once(error: BaseException, seconds: float) -> None:
    """Let the first process alone show an error, if all processes raise the same one and none catches it.

    It is the same where type, message, notes and traceback are. Where it tells apart what was given, that may differ,
    or its sentence if it has no other part, and is in the line of each process. A process that does not learn in time
    that the first one has shown the error shows it itself.

    Args:
        error: What is about to be raised on this process.
        seconds: How long the others may take to raise it.
    """
    if not isinstance(error, Exception) or num_processes() == 1:
        return
    with suppress(Exception):  # whoever keeps the store has ended: each process shows its error
        digest = hashlib.sha256(_text_to_compare(error).encode()).hexdigest()
        event = f"errors/{_times[_FAILURES]}/{digest}"
        if _rank_that_comes_alone(event, seconds) is None:
            setattr(error, _SHARED, _Shared(_store_of(event), dist.get_rank(), dist.get_world_size(), _line(error)))
            if getattr(sys.excepthook, "func", None) is not _show:
                sys.excepthook = partial(_show, sys.excepthook)


_times: Counter[str] = Counter()
"""How often this process has come to an event: as often as the others where all have come each time."""


def _rank_that_comes_alone(event: str, seconds: float) -> int | None:
    """Wait a little for all processes to come to an event; return the first to give that up, None if all have come."""
    _times[event] += 1
    store = _store_of(event)
    if store.add("come", 1) == dist.get_world_size():
        store.compare_set("verdict", "", "all")
    _becomes_true(lambda: store.check(["verdict"]), seconds)
    # Only the first to set it decides, so that no process takes for an event of all what another one gave up.
    decided = store.compare_set("verdict", "", str(dist.get_rank())).decode()
    return None if decided == "all" else int(decided)


def _store_of(event: str) -> Store:
    return PrefixStore(f"pa_distributed/{event}/{_times[event]}", store_of_processes())


class _Shared(NamedTuple):
    """What is needed to show an error once, at the end of the script."""

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
    """Show an exception that nobody has caught; the launcher ends all processes once the first one has ended."""
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
    """Look again and again: a store that is waited on for too long may not answer any more."""
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return True


@runtime_checkable
class _Explained(Protocol):
    """An error that tells apart what was given and what to do, such as an error of pa-core."""

    problem: str
    given: str
    expected: str
    do: str


def _text_to_compare(error: Exception) -> str:
    if not isinstance(error, _Explained):
        return "".join(traceback.format_exception(error))
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    return repr((type(error), error.problem if error.given else "", error.expected, error.do, places))


def _line(error: Exception) -> str:
    kind = f"{type(error).__module__}.{type(error).__qualname__}: the same error as on rank 0"
    given = error.given or error.problem if isinstance(error, _Explained) else ""
    return f"{kind}; given here: {' '.join(given.split())}" if given else kind
