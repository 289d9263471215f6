"""Comparing values that must stay the same on all processes, as part of exchanges that happen anyway."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from torch.optim import Optimizer

import pa_distributed

Describe: TypeAlias = Callable[[], Mapping[str, object]]
"""A function that returns the values that must be the same, by name; it is not called on one process."""

PLACE: Final = "the run is"
"""The name of the text with the position of a process, which is the first value."""

_OPTIMIZER: Final = "optimizer"

RUN_END: Final = "at the end of the run"


def require_same(describe: Describe, exchange: Callable[[list[int]], Sequence[Sequence[float]]]) -> None:
    """Raise the same error on all processes if values differ between them; every process must call this.

    Args:
        describe: A function that returns the values that must be the same. If the positions differ, the other values
            are not compared.
        exchange: The function that exchanges digests; see ``pa_distributed.require_same``.

    Raises:
        RanksDifferError: Values differ.
    """
    pa_distributed.require_same(describe, exchange, _explain)


def _explain(found: str) -> str | None:
    if found.startswith(_OPTIMIZER):
        return _optimizers_parted(found)
    if found.startswith(PLACE):
        return f"The processes of this run have gone different ways: {found}. {advice_for_parted(found)}"
    return None


def require_same_settings(optimizers: Mapping[str, Optimizer]) -> None:
    """Raise the same error on all processes if the settings of their optimizers differ; every process must call this.

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
        "choose an optimizer that updates each element by itself, like AdamW: an optimizer whose step depends on all "
        "parameters, like Prodigy, sees only the shards of its process. Otherwise, find the code that sets a group by "
        "rank."
    )


def advice_for_parted(places: str, has_left: bool = False) -> str:
    """Return what to do about processes that are in different places.

    Args:
        places: The positions, as text.
        has_left: Whether some processes have left the run.
    """
    if has_left or RUN_END in places:
        return "If a single process decides to stop, call run.request_stop() on it instead of leaving the loop."
    return "Move code that only some of the processes reach out of its condition."
