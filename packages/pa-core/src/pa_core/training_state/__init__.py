"""Everything that a run consists of: captured between two updates, and put back so that the run goes on from there."""

from __future__ import annotations

from pa_core.rng import capture_streams
from pa_core.training_state import asked_settings
from pa_core.training_state.content import RunState, SavedRun, capture, schedules
from pa_core.training_state.describing import describe_missing, describe_start
from pa_core.training_state.extension import EpochProgress, Extension, find_extension
from pa_core.training_state.finding import find_state, read_same_state
from pa_core.training_state.lengthened_schedule import say_what_schedules_do
from pa_core.training_state.round_trip import check_scheduler, check_state_of_optimizer, check_storable
from pa_core.training_state.run_loaders import RunLoaders
from pa_core.training_state.safe_point import SafePoint
from pa_core.training_state.saving import StateRequest, StateSaver, Wish
from pa_core.training_state.settings import check_allowed_names, describe_differences, describe_settings
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
    "Wish",
    "asked_settings",
    "capture",
    "capture_streams",
    "check_allowed_names",
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
    "say_what_schedules_do",
    "schedules",
]
