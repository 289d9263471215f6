"""Callbacks, which react to the events of a run, and helpers to write your own callbacks."""

from __future__ import annotations

from pa_core._device_reads import ScalarTransfer
from pa_core.callbacks.best_model import SaveBestModelCallback
from pa_core.callbacks.defaults import DEFAULT_CALLBACKS, get_default_callbacks
from pa_core.callbacks.limit_batches import LimitBatchesCallback, LimitEvalStepsCallback
from pa_core.callbacks.log_metrics import LogMetricsCallback
from pa_core.callbacks.move_modules import MoveModulesToDeviceCallback
from pa_core.callbacks.preemption_notices import PreemptionNotice, SaveAndContinue, SaveAndStop
from pa_core.callbacks.print_progress import PrintProgressCallback
from pa_core.callbacks.progress_bar import ProgressBarCallback
from pa_core.callbacks.save_training_state import SaveTrainingStateCallback
from pa_core.callbacks.step_based_evaluation import StepBasedEvaluationCallback
from pa_core.callbacks.terminate_on_nan import TerminateOnNaNCallback
from pa_core.data.batch_limit import LimitBatches
from pa_core.engine.any_trainer import CallbackHandler, CallbackLike, TrainerCallback
from pa_core.engine.best_metric import (
    FALSE_BY_DEFAULT,
    BestMetric,
    require_watchable,
    resolve_direction,
    watched_value,
)
from pa_core.errors import StopTrainingError
from pa_core.run_config import check_count
from pa_core.tracking.run_history import recording_with_prefix

__all__ = [
    "DEFAULT_CALLBACKS",
    "FALSE_BY_DEFAULT",
    "BestMetric",
    "CallbackHandler",
    "CallbackLike",
    "LimitBatches",
    "LimitBatchesCallback",
    "LimitEvalStepsCallback",
    "LogMetricsCallback",
    "MoveModulesToDeviceCallback",
    "PreemptionNotice",
    "PrintProgressCallback",
    "ProgressBarCallback",
    "SaveAndContinue",
    "SaveAndStop",
    "SaveBestModelCallback",
    "SaveTrainingStateCallback",
    "ScalarTransfer",
    "StepBasedEvaluationCallback",
    "StopTrainingError",
    "TerminateOnNaNCallback",
    "TrainerCallback",
    "check_count",
    "get_default_callbacks",
    "recording_with_prefix",
    "require_watchable",
    "resolve_direction",
    "watched_value",
]
