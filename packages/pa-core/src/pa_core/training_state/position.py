"""Where in a run a training state was saved, and where the run goes on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

__all__ = ["Phase", "Position"]


class Phase(StrEnum):
    """What comes next in a run that goes on."""

    EPOCH = "epoch"
    """The start of the next epoch."""
    STEP = "step"
    """The next training step of an epoch; there may be none left."""
    INTERMEDIATE_EVALUATION = "intermediate_evaluation"
    """An evaluation between two training steps, which was cut short; then the next training step."""
    EVALUATION = "evaluation"
    """The evaluation after a training epoch, which was cut short."""
    NOTHING = "nothing"
    """The run was complete."""

    @property
    def is_in_mid_epoch(self) -> bool:
        """Whether training steps of an epoch come next, perhaps after an evaluation."""
        return self in (Phase.STEP, Phase.INTERMEDIATE_EVALUATION)


@dataclass(frozen=True, slots=True)
class Position:
    """How far a run has come.

    Attributes:
        phase: What comes next.
        epochs: Epochs that are complete, with their evaluation and all of their events.
        updates: Optimizer updates that are complete.
        samples: Samples of the current epoch, over all processes, that were trained on.
        steps: Training steps of the current epoch that are complete.

    Example:
        >>> Position.from_dict(Position(Phase.STEP, epochs=2, updates=25, samples=40, steps=5).to_dict()).samples
        40
    """

    phase: Phase
    epochs: int
    updates: int
    samples: int = 0
    steps: int = 0

    @property
    def current_epoch(self) -> int:
        """The number of the epoch that the state is of, from 1; between two epochs, the one that is complete."""
        return self.epochs if self.phase in (Phase.EPOCH, Phase.NOTHING) else self.epochs + 1

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "phase": self.phase.value}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the position with these values."""
        return cls(Phase(values["phase"]), **{name: int(count) for name, count in values.items() if name != "phase"})
