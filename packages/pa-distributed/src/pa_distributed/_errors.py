"""Errors that users catch, each with one text."""

from __future__ import annotations


class OtherProcessError(RuntimeError):
    """Report on this process that a different process has failed, is gone or did not arrive in time.

    The functions of this package raise it on the ranks that were waiting. The message names the rank, its last known
    position, and the action to take. The cause is in the traceback of the other process, so it is rarely useful to
    catch this error: let it end the script, and let the launcher restart the run.

    Example:
        >>> from pa_distributed import rank_zero_only
        >>> @rank_zero_only()
        ... def save() -> None:
        ...     print("saved")
        >>> try:
        ...     save()  # on the other ranks, if rank 0 fails in it
        ... except OtherProcessError as error:
        ...     raise SystemExit(f"The checkpoint is not complete: {error}")
        saved
    """

    __module__ = "pa_distributed"  # tracebacks show the public name


class RanksDifferError(ValueError):
    """Report that processes were given different values where all of them need the same value.

    ``require_same`` raises it on all processes at once, so that no rank waits for the others. The message lists each
    differing value with the ranks that have it.

    Example:
        >>> from pa_distributed import require_same
        >>> try:
        ...     require_same({"learning rate": 0.1})
        ... except RanksDifferError as error:
        ...     raise SystemExit(f"Start all ranks with the same settings: {error}")
    """

    __module__ = "pa_distributed"  # tracebacks show the public name
