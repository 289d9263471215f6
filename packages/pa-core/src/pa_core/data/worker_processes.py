"""How this Python starts worker processes, and why they cannot be started where they are not forked."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from pickle import PicklingError
from typing import Any, cast

from pa_core.errors import ConfigurationError

__all__ = ["explaining_failed_start", "start_method"]

_WITHOUT_GUARD = "before the current process has finished its bootstrapping phase"
_ENDED = re.compile(r"DataLoader worker .*(exited unexpectedly|is killed)", re.DOTALL)


def start_method(context: str | BaseContext | None = None) -> str:
    """Return how processes are started: ``"fork"``, ``"spawn"`` or ``"forkserver"``; nothing is fixed by asking.

    Args:
        context: The ``multiprocessing_context`` of a loader; None for what holds in this process.

    Example:
        >>> start_method("spawn")
        'spawn'
    """
    if isinstance(context, str):
        return context
    if context is not None:
        return str(context.get_start_method())
    chosen = cast("str | None", multiprocessing.get_start_method(allow_none=True))
    return multiprocessing.get_all_start_methods()[0] if chosen is None else chosen


@contextmanager
def explaining_failed_start(context: str | BaseContext | None, sent: Mapping[str, object]) -> Generator[None]:
    """Explain errors of workers that end before their first batch, as everything they need has to be sent to them.

    Args:
        context: The ``multiprocessing_context`` of the loader.
        sent: What is sent to the workers, by the name that users know it by.

    Raises:
        ConfigurationError: Something could not be pickled, or a worker ended by itself.
    """
    try:
        yield
    except (PicklingError, AttributeError, TypeError, RuntimeError, OSError, EOFError) as error:
        method = start_method(context)
        explained = None if method == "fork" else _explain(error, method, sent)
        if explained is None:
            raise
        raise explained from error


def _explain(error: Exception, method: str, sent: Mapping[str, object]) -> ConfigurationError | None:
    if _WITHOUT_GUARD in str(error):
        return _unguarded(method, "a script that starts workers while a worker imports it")
    if isinstance(error, RuntimeError) and _ENDED.search(str(error)):
        return _unguarded(method, f"a worker that ended before its first batch; what it printed is above ({error})")
    if isinstance(error, BrokenPipeError | ConnectionError | EOFError):
        return _unguarded(method, f"a worker that ended before its first batch ({type(error).__name__})")
    unpicklable = next((name for name, value in sent.items() if not _can_be_pickled(value)), None)
    return None if unpicklable is None else _not_picklable(method, unpicklable, sent[unpicklable], error)


def _can_be_pickled(value: Any) -> bool:
    try:
        ForkingPickler.dumps(value)
    except Exception:
        return False
    return True


def _unguarded(method: str, given: str) -> ConfigurationError:
    return ConfigurationError(
        "The workers of a loader could not start.",
        given=f"processes that are started by {method!r}, and {given}",
        expected='a script whose main part is under if __name__ == "__main__":, and a dataset of a class that can be '
        "imported from a file",
        do='Put the call of train() or evaluate() under if __name__ == "__main__":, and move classes that were defined '
        "in a notebook to a file; or load without workers: num_workers=0.",
    )


def _not_picklable(method: str, name: str, value: object, error: Exception) -> ConfigurationError:
    kind = getattr(value, "__qualname__", type(value).__name__)
    return ConfigurationError(
        f"The {name} cannot be sent to the workers of a loader.",
        given=f"the {name} {kind}, processes that are started by {method!r}, and {type(error).__name__}: {error}",
        expected="what pickle takes: functions and classes at the top level of a file, no open files or locks",
        do=f"Replace lambdas and local functions in the {name} by functions at the top level of a file, or load "
        "without workers: num_workers=0.",
    )
