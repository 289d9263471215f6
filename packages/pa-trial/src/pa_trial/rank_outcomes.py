"""Work that each process does on its own: if a process fails, all of them raise an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from pa_checkpoint import CheckpointError, ExplainedError
from pa_distributed import OtherProcessError, gather_objects
from pa_trial.collectives import rank
from pa_trial.errors import InvalidHP

_T = TypeVar("_T")


def on_each_rank(compute: Callable[[], _T], doing: str) -> _T:
    """Return the result of ``compute`` on this process, if it succeeded on all processes; every process must call this.

    Args:
        compute: Called once on each process. It may take any time, and must not exchange anything itself.
        doing: A description of the work, for the message on the other processes if it fails on a process.

    Raises:
        OtherProcessError: It failed on another process. An error of this package is raised unchanged, and so is
            ``InvalidHP``, which ends all processes cleanly.
    """
    try:
        returned = compute()
    except Exception as error:
        # The attributes of other exceptions may not be picklable.
        explained = error if isinstance(error, (ExplainedError, CheckpointError, InvalidHP)) else None
        gather_objects((f"{type(error).__name__}: {error}", explained))
        raise
    for number, failure in enumerate(gather_objects(cast("tuple[str, Exception | None] | None", None))):
        if failure is not None:
            problem = f"Another process failed {doing}: rank {number}: {failure[0]}. Look at its traceback."
            raise failure[1] or OtherProcessError(problem)
    return returned


def from_chief(compute: Callable[[], _T], doing: str) -> _T:
    """Return on all processes the return value of ``compute`` on the chief, the only process to call it.

    Args:
        compute: See ``on_each_rank``.
        doing: See ``on_each_rank``.

    Raises:
        OtherProcessError: As ``on_each_rank``.
    """
    return cast("_T", gather_objects(on_each_rank(lambda: compute() if rank() == 0 else None, doing))[0])
