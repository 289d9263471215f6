"""Compares what must stay the same on all processes with what they exchange anyway."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import pa_distributed
from pa_core.errors import RanksDifferError

Describe: TypeAlias = Callable[[], Mapping[str, object]]
"""Returns what has to be the same, by name, as ``pa_distributed.require_same`` takes it; not called on one process."""

PLACE: Final = "the run is"
"""The name of the text that says where a process is, the first of several."""

RUN_END: Final = "at the end of the run"


def require_same(describe: Describe, exchange: Callable[[list[int]], Sequence[Sequence[float]]]) -> None:
    """Raise the same error on all processes for anything that differs between them; every process must call this.

    Args:
        describe: Returns what has to be the same. If where they are differs, the rest belongs to something else
            altogether, and is left out.
        exchange: As ``pa_distributed.require_same`` takes it.

    Raises:
        RanksDifferError: Something differs.
    """
    try:
        pa_distributed.require_same(describe, exchange)
    except RanksDifferError as error:
        if not error.given.startswith(PLACE):
            raise
        raise RanksDifferError(
            "The processes of this run have gone different ways.", given=error.given, do=advice_for_parted(error.given)
        ) from None


def advice_for_parted(places: str, has_left: bool = False) -> str:
    """Return what to do about processes that are in different places.

    Args:
        places: Where they are, as text.
        has_left: Whether some have left the run.
    """
    if has_left or RUN_END in places:
        return "Where one process alone decides to stop, call run.request_stop() on it instead of leaving the loop."
    return "Take what only some of the processes come to out of the condition that it depends on."
