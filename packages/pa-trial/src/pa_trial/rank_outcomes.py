"""Work that each process does on its own: where one of them fails, all of them raise an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from pa_checkpoint import CheckpointError
from pa_data.errors import ExplainedError
from pa_distributed import OtherProcessError, gather_objects
from pa_trial.collectives import num_processes, rank
from pa_trial.errors import InvalidHP

_T = TypeVar("_T")


class _Failure(NamedTuple):
    """What another process is told of an exception, which may not survive the way itself."""

    text: str
    error: ExplainedError | CheckpointError | InvalidHP | None


def of_each_rank(compute: Callable[[], _T], doing: str) -> list[_T]:
    """Return what ``compute`` returned on each process; every process must call this.

    Args:
        compute: Called once on each process, where it may take its time. It exchanges nothing itself.
        doing: What it does, for the message on the other processes if it fails on one.

    Raises:
        OtherProcessError: It failed on another process. An error that explains itself is raised as it is, and so is
            ``InvalidHP``, with which all processes end in order.
    """
    if num_processes() == 1:
        return [compute()]
    try:
        outcome: _T | _Failure = compute()
    except Exception as error:
        explained = error if isinstance(error, (ExplainedError, CheckpointError, InvalidHP)) else None
        gather_objects(_Failure(f"{type(error).__name__}: {error}", explained))
        raise
    values: list[_T] = []
    for number, one in enumerate(gather_objects(outcome)):
        if isinstance(one, _Failure):
            problem = f"Another process failed {doing}: rank {number}: {one.text}"
            raise one.error or OtherProcessError(problem, do=f"Look at the traceback of rank {number}.")
        values.append(one)
    return values


def on_each_rank(compute: Callable[[], _T], doing: str) -> _T:
    """Return what ``compute`` returned on this process, when it came through on all; every process must call this.

    Args:
        compute: See ``of_each_rank``; what it returns stays on its process.
        doing: See ``of_each_rank``.

    Raises:
        OtherProcessError: As ``of_each_rank``.
    """
    returned: list[_T] = []
    of_each_rank(lambda: returned.append(compute()), doing)
    return returned[0]


def from_chief(compute: Callable[[], _T], doing: str) -> _T:
    """Return on all processes what ``compute`` returned on the chief, the only one to call it.

    Args:
        compute: See ``of_each_rank``.
        doing: See ``of_each_rank``.

    Raises:
        OtherProcessError: As ``of_each_rank``.
    """
    return of_each_rank(lambda: [compute()] if rank() == 0 else [], doing)[0][0]
