"""Warnings that point at the user's line, however deep in a run their cause is found."""

from __future__ import annotations

import sys
import warnings

__all__ = ["warn_user"]


def warn_user(message: str) -> None:
    """Issue a ``UserWarning`` at the innermost frame that is not one of ``pa_core``.

    Args:
        message: What is wrong, and what to do.
    """
    level, frame = 2, sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # documented, and far cheaper than inspect
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "pa_core":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)
