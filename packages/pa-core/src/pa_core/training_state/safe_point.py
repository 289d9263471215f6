"""Whether a run stands where its training state can be saved: between two updates, with all of them accounted for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pa_core import distributed
from pa_core.errors import CheckpointError, NonFiniteLossError, TrainingPreempted
from pa_core.progress import Phase
from pa_core.rng import capture_rng_state

__all__ = ["SafePoint"]


class SafePoint:
    """Where a run stands, as far as its training state is concerned, and what ended it.

    Attributes:
        phase: What comes next; None in the middle of something, such as an update, that cannot be done a second time.
        ended_by: The class of the exception that ended the run, None while it goes on and where it ended as it was
            meant to. Not the exception: its traceback would keep the batch and the graph of the last step in memory.
        streams: The random streams at the time of that exception; None without one, or in the middle of something.
    """

    def __init__(self) -> None:
        self.phase: Phase | None = None
        self.ended_by: type[BaseException] | None = None
        self.streams: Mapping[str, Any] | None = None

    def reach(self, phase: Phase) -> None:
        """Take note that everything the run consists of belongs to the same update."""
        self.phase = phase

    def leave(self) -> None:
        """Take note that something begins that changes a part of the run before the others."""
        self.phase = None

    def end(self, exception: BaseException, device: torch.device) -> None:
        """Take note of the exception that ends the run, and of the random streams, which the script may draw from."""
        self.ended_by = type(exception)
        if self.phase is not None:
            self.streams = capture_rng_state(device)

    def require(self) -> Phase:
        """Return what comes next in a run that has ended.

        Raises:
            CheckpointError: The run cannot go on from where it ended.
        """
        # Several processes agree on where they stand when they are preempted; other exceptions end each where it is.
        is_together = self.ended_by is None or issubclass(self.ended_by, TrainingPreempted)
        ended_apart = distributed.num_processes() > 1 and not is_together
        if self.phase is not None and not ended_apart:
            return self.phase
        raise CheckpointError(
            "The run cannot go on from where it stands, so that its training state is not saved.",
            given=f"save_training_state() {self._when()}",
            expected="a run that goes on, that is complete, or that was left between two updates",
            do=self._advice(),
        )

    def _when(self) -> str:
        if self.ended_by is None:
            return "after a run that trained nothing, such as evaluate()"
        kind = self.ended_by.__name__
        if distributed.num_processes() > 1:
            return f"after {kind} ended the run on {distributed.num_processes()} processes, each where it was"
        return f"after {kind} ended the run in the middle of an update, an epoch's events or an evaluation"

    def _advice(self) -> str:
        if self.ended_by is None:
            return "Save the state before evaluate() is called, or when train() has returned."
        if issubclass(self.ended_by, NonFiniteLossError):
            return "Go on from a state that was saved before, with other settings."
        if issubclass(self.ended_by, KeyboardInterrupt):
            return (
                'Pass SaveTrainingStateCallback(..., stop_on_signals=("SIGINT",)): Ctrl-C then ends the run after the '
                "update, with a state."
            )
        return "Go on from a state that SaveTrainingStateCallback(..., save_every_n_steps=...) saved before."
