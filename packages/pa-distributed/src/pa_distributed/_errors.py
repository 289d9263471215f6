"""Errors that users catch, each with one text."""

from __future__ import annotations


class OtherProcessError(RuntimeError):
    """Another process has failed, is gone, or did not come, while this one waited for it.

    Example:
        >>> issubclass(OtherProcessError, RuntimeError)
        True
    """

    __module__ = "pa_distributed"  # tracebacks name what one imports


class RanksDifferError(ValueError):
    """Processes were not given the same; raised on all of them, with what each rank has.

    Example:
        >>> issubclass(RanksDifferError, ValueError)
        True
    """

    __module__ = "pa_distributed"  # tracebacks name what one imports
