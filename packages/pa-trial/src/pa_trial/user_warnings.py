"""Warnings that point at the user's line, no matter how deep in a training their cause is."""

from __future__ import annotations

import sys
import warnings

from pa_data.errors import without_secrets

_OURS = frozenset({"contextlib", "pa_checkpoint", "pa_data", "pa_distributed", "pa_trial"})


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the innermost frame outside of this package.

    Args:
        message: The problem and its remedy.
        category: ``DeprecationWarning`` for features that will be removed.
    """
    level, frame = 2, sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # documented, and far cheaper than inspect
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in _OURS:
        level, frame = level + 1, frame.f_back
    warnings.warn(without_secrets(message), category, stacklevel=level)
