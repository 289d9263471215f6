"""Training states: everything a run consists of, captured between two updates and restored to resume from there."""

from __future__ import annotations

from pa_core.rng import capture_rng_state
from pa_core.training_state import asked_settings
from pa_core.training_state.describing import describe_missing, describe_start
from pa_core.training_state.extension import EpochProgress, Extension, find_extension
from pa_core.training_state.finding import find_state, read_same_state
from pa_core.training_state.lengthened_schedule import with_schedule_lengths
from pa_core.training_state.round_trip import check_scheduler, check_state_of_optimizer, check_storable
from pa_core.training_state.run_loaders import RunLoaders
from pa_core.training_state.run_settings import check_resume_overrides, describe_differences, describe_settings
from pa_core.training_state.run_state import RunState, SavedRun, capture, schedules
from pa_core.training_state.safe_point import SafePoint
from pa_core.training_state.saving import StateRequest, StateSaver
from pa_core.training_state.snapshotable import Snapshotable

__all__ = [
    "EpochProgress",
    "Extension",
    "RunLoaders",
    "RunState",
    "SafePoint",
    "SavedRun",
    "Snapshotable",
    "StateRequest",
    "StateSaver",
    "asked_settings",
    "capture",
    "capture_rng_state",
    "check_resume_overrides",
    "check_scheduler",
    "check_state_of_optimizer",
    "check_storable",
    "describe_differences",
    "describe_missing",
    "describe_settings",
    "describe_start",
    "find_extension",
    "find_state",
    "read_same_state",
    "schedules",
    "with_schedule_lengths",
]
