"""One error on all processes is shown by the first of them; each of the others prints a line."""

from __future__ import annotations

import hashlib
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Final, NamedTuple

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from pa_core._torch import store_of_processes
from pa_core.distributed.collectives import num_processes
from pa_core.errors import is_explained

__all__ = ["FAILURE", "rank_that_comes_alone", "show_once", "showing_errors_once"]

FAILURE: Final = "failures"
"""What happens when an exception leaves a run, on all processes or on some."""

_SECONDS_UNTIL_ALL_RAISE = 3.0
_SECONDS_UNTIL_SHOWN = 10.0
_SECONDS_UNTIL_NOTED = 3.0
_SECONDS_BETWEEN_LOOKS = 0.02
_SHARED = "_shared_by_processes"


@contextmanager
def showing_errors_once() -> Generator[None]:
    """Within the context, an error that all processes raise is shown once; it is raised on each of them.

    Example:
        >>> with showing_errors_once():
        ...     raise ValueError("on one process, nothing is different")
        Traceback (most recent call last):
        ...
        ValueError: on one process, nothing is different
    """
    try:
        yield
    except Exception as error:
        show_once(error, _SECONDS_UNTIL_ALL_RAISE)
        raise


def show_once(error: BaseException, seconds: float) -> None:
    """Let the first process alone show an error, if all processes raise the same one and none catches it.

    It is the same where type, message, notes and traceback are. Of an ``ExplainedError``, what was given may differ, or
    its sentence if it has no other part, and is in the line of each process. A process that does not learn in time
    that the first one has shown the error shows it itself.

    Args:
        error: What is about to be raised on this process.
        seconds: How long the others may take to raise it.
    """
    if not isinstance(error, Exception) or num_processes() == 1:
        return
    with suppress(Exception):  # whoever keeps the store has ended: each process shows its error
        digest = hashlib.sha256(_text_to_compare(error).encode()).hexdigest()
        event = f"errors/{_times[FAILURE]}/{digest}"
        if rank_that_comes_alone(event, seconds) is None:
            store = _store_of(event)
            setattr(error, _SHARED, _Shared(store, dist.get_rank(), dist.get_world_size(), _line(error)))
            if getattr(sys.excepthook, "func", None) is not _show:
                sys.excepthook = partial(_show, sys.excepthook)


_times: Counter[str] = Counter()
"""How often this process has come to an event: as often as the others where all have come each time."""


def rank_that_comes_alone(event: str, seconds: float) -> int | None:
    """Wait a little for all processes to come to an event; return the first to give that up, None if all have come.

    Args:
        event: What it is called.
        seconds: How long to wait.
    """
    _times[event] += 1
    store = _store_of(event)
    if store.add("come", 1) == dist.get_world_size():
        store.compare_set("verdict", "", "all")
    _becomes_true(lambda: store.check(["verdict"]), seconds)
    # Only the first to set it decides, so that no process takes for an event of all what another one gave up.
    decided = store.compare_set("verdict", "", str(dist.get_rank())).decode()
    return None if decided == "all" else int(decided)


def _store_of(event: str) -> Store:
    return PrefixStore(f"pa_core/{event}/{_times[event]}", store_of_processes())


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
        sys.stderr.write(f"[rank{rank}]: {line}\n")
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


def _text_to_compare(error: Exception) -> str:
    if not is_explained(error):
        return "".join(traceback.format_exception(error))
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    return repr((type(error), error.problem if error.given else "", error.expected, error.do, places))


def _line(error: Exception) -> str:
    kind = f"{type(error).__module__}.{type(error).__qualname__}: the same error as on rank 0"
    return f"{kind}; given here: {' '.join((error.given or error.problem).split())}" if is_explained(error) else kind
