"""One error on all processes is shown by the first of them; each of the others prints a line."""

from __future__ import annotations

import hashlib
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import TracebackType

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from pa_core._torch import store_of_processes
from pa_core.errors import is_explained

__all__ = ["show_once", "showing_errors_once", "store_of_processes"]

_SECONDS_UNTIL_ALL_RAISE = 3.0
_SECONDS_UNTIL_SHOWN = 10.0
_SECONDS_UNTIL_NOTED = 3.0
_SECONDS_BETWEEN_LOOKS = 0.02
_DISPLAY = "_display_of_pa_core"


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
    if not isinstance(error, Exception) or not (dist.is_available() and dist.is_initialized()):
        return
    if dist.get_world_size() == 1:
        return
    with suppress(Exception):  # whoever keeps the store has ended: each process shows its error
        display = _Display(error)
        if display.is_shared(seconds):
            _install_hook()
            setattr(error, _DISPLAY, display)


_times_shared: Counter[str] = Counter()
"""How often all processes have raised an error together, by its digest: the same number on all of them."""


class _Display:
    """How this process shows an error that it may share with the others."""

    def __init__(self, error: Exception) -> None:
        self._digest = hashlib.sha256(_text_to_compare(error).encode()).hexdigest()
        prefix = f"pa_core/errors/{self._digest}/{_times_shared[self._digest]}"
        self._store = PrefixStore(prefix, store_of_processes())
        self._is_first = dist.get_rank() == 0
        self._others = dist.get_world_size() - 1
        self._line = f"[rank{dist.get_rank()}]: {_line(error)}\n"

    def is_shared(self, seconds: float) -> bool:
        """Whether all processes raise the error, within some seconds."""
        own, all_ranks = str(dist.get_rank()), list(map(str, range(dist.get_world_size())))
        self._store.set(own, "")
        if _becomes_true(lambda: self._store.check(all_ranks), seconds):
            _times_shared[self._digest] += 1
            return True
        self._store.delete_key(own)  # what another process raises later is not the same failure
        return False

    def show(self, show_in_full: Callable[[], object]) -> None:
        """Show the error at the end of the script, which the launcher ends once another process has ended."""
        if self._is_first:
            show_in_full()
            with suppress(Exception):
                sys.stderr.flush()
                self._store.set("shown", "")
                _becomes_true(lambda: self._store.add("noted", 0) >= self._others, _SECONDS_UNTIL_NOTED)
            return
        is_shown = False
        with suppress(Exception):  # the first process has ended, and kept the store
            is_shown = _becomes_true(lambda: self._store.check(["shown"]), _SECONDS_UNTIL_SHOWN)
        if is_shown:
            sys.stderr.write(self._line)
            sys.stderr.flush()
            with suppress(Exception):
                self._store.add("noted", 1)
        else:
            show_in_full()


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


class _Hook:
    """Is called by Python for an exception that nobody has caught.

    Args:
        previous: What was called until then, such as torch's own hook, which puts the rank before each line.
    """

    def __init__(self, previous: Callable[[type[BaseException], BaseException, TracebackType | None], object]) -> None:
        self._previous = previous

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        display = getattr(error, _DISPLAY, None)
        if isinstance(display, _Display):
            display.show(lambda: self._previous(kind, error, trace))
        else:
            self._previous(kind, error, trace)


def _install_hook() -> None:
    if not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook(sys.excepthook)
