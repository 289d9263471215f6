"""Printing lines once in a run, and warnings that point at the user's line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from pa_data.errors import without_secrets

__all__ = ["warn_user"]


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Show a warning that points at the line in the user's script rather than at a line inside the library.

    Use it in callbacks and packages that build on ``pa_core``, in place of ``warnings.warn``. It is the line of the
    innermost call outside ``pa_core`` and the package that calls this function. Passwords and queries of URLs in the
    message are replaced by ``***``. The usual filters of ``warnings`` apply.

    Args:
        message: The problem and the advice, in full sentences.
        category: The class of the warning. By default, a ``UserWarning`` is shown, once for each line. Pass
            ``DeprecationWarning`` for features that will be removed.

    Raises:
        Warning: The ``category``, if a filter of ``warnings`` turns it into an error.

    Example:
        >>> import warnings
        >>> from pa_core.user_warnings import warn_user
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn_user("The folder is empty. Pass another path.")
        >>> str(caught[0].message)
        'The folder is empty. Pass another path.'
    """
    level, frame = 2, sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # documented, and far cheaper than inspect
    ours = {"pa_core", _package(frame)}
    while frame.f_back is not None and _package(frame) in ours:
        level, frame = level + 1, frame.f_back
    warnings.warn(without_secrets(message), category, stacklevel=level)


class _Prints(Protocol):
    @property
    def is_main_process(self) -> bool: ...

    def print(self, *args: object, **kwargs: Any) -> None: ...


def print_once(run: _Prints, text: str) -> None:
    """Print a string once in the whole run, even if the run uses several machines.

    Args:
        run: The trainer.
        text: The string.
    """
    if run.is_main_process:
        # Without flush, progress lines, which are flushed, would come before these lines in a log file.
        run.print(without_secrets(text), flush=True)


def write_or_warn(write: Callable[[], object]) -> None:
    """Write to standard output, and turn an error into a warning, so that a closed pipe does not end the run.

    Args:
        write: The function that writes.
    """
    try:
        write()
    except OSError as error:
        warn_user(f"Standard output cannot be written to any more ({error}), so the run continues without it.")


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
