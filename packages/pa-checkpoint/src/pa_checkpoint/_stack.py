"""Reading where the stack of Python is nearly used up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from pa_checkpoint._errors import damage

__all__ = ["with_enough_stack"]

_ResultT = TypeVar("_ResultT")


def with_enough_stack(read: Callable[[], _ResultT], path: Path) -> _ResultT:
    """Return what a function reads: in a thread, which has its own stack, where the caller is too deep in this one.

    So a whole file is never taken for a damaged one because of where it was read.

    Args:
        read: Reads a file, and changes nothing.
        path: The file, for messages.

    Raises:
        CheckpointError: What is in the file is nested more deeply than any stack.
        RecursionError: There is not even room to start a thread.
    """
    try:
        return read()
    except RecursionError:
        result: Future[_ResultT] = Future()
        thread = threading.Thread(target=_fulfil, args=(result, read), name="pa_checkpoint reading")
        thread.start()
        thread.join()
    error = result.exception()
    if isinstance(error, RecursionError):
        raise damage(path, f"what is nested too deeply: reading it raised {type(error).__name__}: {error}") from error
    return result.result()


def _fulfil(result: Future[_ResultT], read: Callable[[], _ResultT]) -> None:
    try:
        result.set_result(read())
    except BaseException as error:  # whatever it is, the thread that waits is told
        result.set_exception(error)
