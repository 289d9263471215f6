"""Where a run that has ended continues if more epochs or updates are requested than before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pa_core.progress import Phase, Position, Progress

__all__ = ["Extension", "find_extension"]


@dataclass(frozen=True, slots=True)
class Extension:
    """Where a run continues if more is requested.

    Attributes:
        position: What comes then.
        number_in_history: The number of that epoch in the run history.
    """

    position: Position
    number_in_history: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"position": self.position.to_dict(), "number_in_history": self.number_in_history}


def find_extension(
    position: Position,
    progress: Progress,
    *,
    num_steps: int | None,
    number_in_history: int,
    is_at_last_update: bool,
) -> Extension | None:
    """Return where a run that has ended within an epoch continues; None where it continues at its position.

    Args:
        position: Where the run stands.
        progress: How far it has come in its last epoch.
        num_steps: Training steps of a whole epoch; None of a stream, whose end alone tells.
        number_in_history: The number of the current epoch in the run history.
        is_at_last_update: Whether all updates were made, so that the run left the epoch early.

    Example:
        >>> ended = Position(Phase.COMPLETE, epochs=2, updates=12)
        >>> progress = Progress(updates=12, epochs=2, samples_in_epoch=16, steps_in_epoch=2)
        >>> extension = find_extension(ended, progress, num_steps=10, number_in_history=3, is_at_last_update=True)
        >>> extension.position
        Position(phase=<Phase.STEP: 'step'>, epochs=1, updates=12, samples=16, steps=2, eval_sets=())
    """
    is_unfinished = progress.steps_in_epoch > 0 and (num_steps is None or progress.steps_in_epoch < num_steps)
    if progress.epoch_under_way is not None:
        return _of_stopped_epoch(position, progress, number_in_history, is_unfinished=is_unfinished)
    if position.phase.is_mid_epoch or not (is_at_last_update and is_unfinished):
        return None
    rest = replace(_mid_epoch(position, progress), epochs=position.epochs - 1)
    return Extension(rest, number_in_history - 1)


def _of_stopped_epoch(
    position: Position, progress: Progress, number_in_history: int, *, is_unfinished: bool
) -> Extension | None:
    """As above, where the run was stopped at one of the steps or events of an epoch, or preempted there."""
    if is_unfinished and position.phase in (Phase.COMPLETE, Phase.EVALUATION):
        return Extension(_mid_epoch(position, progress), number_in_history)
    if position.phase is not Phase.COMPLETE:
        return None
    if position.epochs > (progress.epoch_under_way or 0):
        return Extension(replace(position, phase=Phase.EPOCH), number_in_history + 1)
    phase = Phase.EVALUATION if progress.steps_in_epoch else Phase.EPOCH
    return Extension(replace(position, phase=phase), number_in_history)


def _mid_epoch(position: Position, progress: Progress) -> Position:
    steps, samples = progress.steps_in_epoch, progress.samples_in_epoch
    return replace(position, phase=Phase.STEP, samples=samples, steps=steps, eval_sets=())
