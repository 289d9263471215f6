"""Warnings that point at a line of the user, no matter how deep in a loader their cause is."""

from __future__ import annotations

import sys
import warnings

from pa_data.errors import without_secrets

__all__ = ["warn_user"]


def warn_user(message: str) -> None:
    """Issue a warning at the innermost frame outside this package.

    Args:
        message: The problem, and the action that solves it.
    """
    level, frame = 1, sys._getframe()  # pyright: ignore[reportPrivateUsage]  # documented, and far cheaper than inspect
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("pa_data."):
        level, frame = level + 1, frame.f_back
    warnings.warn(without_secrets(message), stacklevel=level)
