"""Compares what must stay the same on all processes with what they exchange anyway."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from torch.optim import Optimizer

import pa_distributed

Describe: TypeAlias = Callable[[], Mapping[str, object]]
"""Returns what has to be the same, by name, as ``pa_distributed.require_same`` takes it; not called on one process."""

PLACE: Final = "the run is"
"""The name of the text that says where a process is, the first of several."""

_OPTIMIZER: Final = "optimizer"

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
    pa_distributed.require_same(describe, exchange, _explain)


def _explain(found: str) -> str | None:
    if found.startswith(_OPTIMIZER):
        return _optimizers_parted(found)
    if found.startswith(PLACE):
        return f"The processes of this run have gone different ways: {found}. {advice_for_parted(found)}"
    return None


def require_same_settings(optimizers: Mapping[str, Optimizer]) -> None:
    """Raise the same error on all processes if their optimizers have other settings; every process must call this.

    Args:
        optimizers: The optimizers, by name.

    Raises:
        RanksDifferError: The settings of a group differ.
    """
    kinds = ", ".join(dict.fromkeys(type(optimizer).__name__ for optimizer in optimizers.values()))
    pa_distributed.require_same(
        {f"{_OPTIMIZER} {name}".removesuffix(f" {_OPTIMIZER}"): optimizer for name, optimizer in optimizers.items()},
        explain=lambda found: _optimizers_parted(f"{kinds}; {found}"),
    )


def _optimizers_parted(found: str) -> str:
    return (
        f"The settings of an optimizer have come to differ between the processes: {found}. If the model is sharded, "
        "choose an optimizer that updates each element by itself, such as AdamW: one whose step depends on all "
        "parameters, as Prodigy's does, sees the shards of its process alone. Otherwise, find what sets a group by its "
        "rank."
    )


def advice_for_parted(places: str, has_left: bool = False) -> str:
    """Return what to do about processes that are in different places.

    Args:
        places: Where they are, as text.
        has_left: Whether some have left the run.
    """
    if has_left or RUN_END in places:
        return "Where one process alone decides to stop, call run.request_stop() on it instead of leaving the loop."
    return "Take what only some of the processes come to out of the condition that it depends on."
