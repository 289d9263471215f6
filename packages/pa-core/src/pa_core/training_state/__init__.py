"""Training states: everything a run consists of, captured between two updates and restored to resume from there."""

from __future__ import annotations

from pa_core.training_state import asked_settings
from pa_core.training_state.fetched_states import fetched, folder_of, homes_of
from pa_core.training_state.resumption import Resumption
from pa_core.training_state.run_settings import check_resume_overrides
from pa_core.training_state.run_state import RunState, SavedRun, capture
from pa_core.training_state.safe_points import EvaluationInterrupted, RunParts, SafePoints
from pa_core.training_state.saved_runs import find_saved_run
from pa_core.training_state.snapshotable import ResumableRun, Snapshotable
from pa_core.training_state.state_writer import StateRequest

__all__ = [
    "EvaluationInterrupted",
    "ResumableRun",
    "Resumption",
    "RunParts",
    "RunState",
    "SafePoints",
    "SavedRun",
    "Snapshotable",
    "StateRequest",
    "asked_settings",
    "capture",
    "check_resume_overrides",
    "fetched",
    "find_saved_run",
    "folder_of",
    "homes_of",
]
