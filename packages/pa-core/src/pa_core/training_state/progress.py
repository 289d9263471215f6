"""The counters of a run, and a position in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from pa_core.distributed.comparison import RUN_END


class Stage(StrEnum):
    """The stage of a run, which must be the same on processes that communicate."""

    START = "at the start of the run"
    TRAINING = "in the training of an epoch"
    EVALUATION = "in an evaluation"
    PREDICTION = "in a prediction"
    EPOCH_END = "at the end of an epoch"
    RUN_END = RUN_END


class Phase(StrEnum):
    """The next phase of a run."""

    EPOCH = "epoch"
    """The start of the next epoch."""
    STEP = "step"
    """The next training step of an epoch; no step may be left."""
    INTERMEDIATE_EVALUATION = "intermediate_evaluation"
    """An evaluation between two training steps that was interrupted; then the next training step."""
    EVALUATION = "evaluation"
    """The evaluation after a training epoch that was interrupted."""
    COMPLETE = "nothing"  # the value in training states
    """The run was complete."""

    @property
    def is_mid_epoch(self) -> bool:
        """Whether training steps of an epoch come next, perhaps after an evaluation."""
        return self in (Phase.STEP, Phase.INTERMEDIATE_EVALUATION)


class Position(NamedTuple):
    """The position of a run.

    Attributes:
        phase: The next phase.
        epochs: The number of complete epochs, with their evaluation and all of their events.
        updates: The number of complete optimizer updates.
        samples: The number of samples of the current epoch, over all processes, that were trained on.
        steps: The number of complete training steps of the current epoch.
        eval_sets: The remaining sets of an interrupted evaluation; empty for a single dataset.

    Example:
        >>> Position(Phase.STEP, epochs=2, updates=25, samples=40, steps=5).phase.is_mid_epoch
        True
    """

    phase: Phase
    epochs: int
    updates: int
    samples: int = 0
    steps: int = 0
    eval_sets: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        values = {**self._asdict(), "phase": self.phase.value, "eval_sets": list(self.eval_sets)}
        if not self.eval_sets:
            del values["eval_sets"]  # which states had not before several sets existed
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Position:
        """Return the position with these values, from ``to_dict``."""
        read: dict[str, Any] = {"phase": Phase(values["phase"]), "eval_sets": tuple(values.get("eval_sets", ()))}
        return cls(**{**values, **read})


@dataclass(slots=True)
class Progress:
    """The counters of a run. They start at zero; the counters of the run history may continue an earlier run.

    Attributes:
        stage: The stage of the run.
        updates: The number of complete optimizer updates.
        epochs: The number of complete epochs, with their evaluation; the last events of an epoch count it.
        epoch_under_way: The number of the current epoch, counted from 0, from its first event until after its last
            event; None between two epochs.
        step: The number of the current training step in its epoch, counted from 1.
        resumed_steps: The number of training steps of the current epoch that were complete when this process began it.
        steps_in_epoch: The number of training steps of the current epoch up to the end of the last accumulation group,
            whether or not its update was made.
        samples_in_epoch: The number of samples of the current epoch, over all processes, in the groups that are
            complete.
        samples_in_group: The number of samples of the current accumulation group so far, over all processes.

    Example:
        >>> progress = Progress(updates=1, steps_in_epoch=2, samples_in_epoch=16)
        >>> progress.position(Phase.STEP)
        Position(phase=<Phase.STEP: 'step'>, epochs=0, updates=1, samples=16, steps=2, eval_sets=())
    """

    stage: Stage = Stage.START
    updates: int = 0
    epochs: int = 0
    epoch_under_way: int | None = None
    step: int = 0
    resumed_steps: int = 0
    steps_in_epoch: int = 0
    samples_in_epoch: int = 0
    samples_in_group: int = 0

    def start_epoch(self) -> None:
        """Set the counters of an epoch to zero."""
        self.steps_in_epoch = self.samples_in_epoch = self.samples_in_group = 0

    def position(self, phase: Phase) -> Position:
        """Return the position of the run, with steps and samples of an epoch only if more of its steps follow.

        Args:
            phase: The next phase.
        """
        if not phase.is_mid_epoch:
            return Position(phase, epochs=self.epochs, updates=self.updates)
        return Position(phase, self.epochs, self.updates, samples=self.samples_in_epoch, steps=self.steps_in_epoch)
