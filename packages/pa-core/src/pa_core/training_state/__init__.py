"""Training states: everything a run consists of, captured between two updates and restored to resume from there."""

from __future__ import annotations

from pa_core.training_state import initial_hyperparameters
from pa_core.training_state.checkpointer import Checkpointer, EvaluationInterrupted, RunParts
from pa_core.training_state.fetched_states import fetched, folder_of, homes_of
from pa_core.training_state.resume import Resumption
from pa_core.training_state.run_settings import check_resume_overrides
from pa_core.training_state.run_state import RunState, SavedRun, capture
from pa_core.training_state.saved_runs import find_saved_run
from pa_core.training_state.snapshotable import ResumableRun
from pa_core.training_state.state_writer import StateRequest

__all__ = [
    "Checkpointer",
    "EvaluationInterrupted",
    "ResumableRun",
    "Resumption",
    "RunParts",
    "RunState",
    "SavedRun",
    "StateRequest",
    "capture",
    "check_resume_overrides",
    "fetched",
    "find_saved_run",
    "folder_of",
    "homes_of",
    "initial_hyperparameters",
]
