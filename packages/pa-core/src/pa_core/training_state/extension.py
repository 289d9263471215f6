"""Where a run that has ended continues if more epochs or updates are asked for than before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from pa_core.progress import Phase, Position

__all__ = ["EpochProgress", "Extension", "find_extension"]


@dataclass(frozen=True, slots=True)
class EpochProgress:
    """How far a run has come in its last epoch.

    Attributes:
        epoch: The number of the epoch, counted from 0, while it is under way; None after its last event.
        samples: Samples of the epoch, over all processes, that were trained on.
        steps: Training steps of the epoch that are complete.
        num_steps: Training steps of a whole epoch.
        number_in_history: The number of the current epoch in the run history.
    """

    epoch: int | None
    samples: int
    steps: int
    num_steps: int
    number_in_history: int

    @property
    def is_unfinished(self) -> bool:
        """Whether some training steps of the epoch are complete, and others are left."""
        return 0 < self.steps < self.num_steps


@dataclass(frozen=True, slots=True)
class Extension:
    """Where a run continues if more is asked for.

    Attributes:
        position: What comes then.
        number_in_history: The number of that epoch in the run history.
    """

    position: Position
    number_in_history: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"position": self.position.to_dict(), "number_in_history": self.number_in_history}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the extension with these values."""
        return cls(Position.from_dict(values["position"]), int(values["number_in_history"]))


def find_extension(position: Position, progress: EpochProgress, *, is_at_last_update: bool) -> Extension | None:
    """Return where a run that has ended within an epoch continues; None where it continues at its position.

    Args:
        position: Where the run stands.
        progress: How far it has come in its last epoch.
        is_at_last_update: Whether all updates were made, so that the run left the epoch early.

    Example:
        >>> ended = Position(Phase.COMPLETE, epochs=2, updates=12)
        >>> progress = EpochProgress(epoch=None, samples=16, steps=2, num_steps=10, number_in_history=3)
        >>> extension = find_extension(ended, progress, is_at_last_update=True)
        >>> extension.position
        Position(phase=<Phase.STEP: 'step'>, epochs=1, updates=12, samples=16, steps=2)
    """
    if progress.epoch is not None:
        return _of_stopped_epoch(position, progress, progress.epoch)
    if position.phase.is_mid_epoch or not (is_at_last_update and progress.is_unfinished):
        return None
    rest = replace(_mid_epoch(position, progress), epochs=position.epochs - 1)
    return Extension(rest, progress.number_in_history - 1)


def _of_stopped_epoch(position: Position, progress: EpochProgress, epoch: int) -> Extension | None:
    """As above, where the run was stopped at one of the steps or events of an epoch, or preempted there."""
    number = progress.number_in_history
    if progress.is_unfinished and position.phase in (Phase.COMPLETE, Phase.EVALUATION):
        return Extension(_mid_epoch(position, progress), number)
    if position.phase is not Phase.COMPLETE:
        return None
    if position.epochs > epoch:
        return Extension(replace(position, phase=Phase.EPOCH), number + 1)
    return Extension(replace(position, phase=Phase.EVALUATION if progress.steps else Phase.EPOCH), number)


def _mid_epoch(position: Position, progress: EpochProgress) -> Position:
    return replace(position, phase=Phase.STEP, samples=progress.samples, steps=progress.steps)
