"""All callbacks, of the core and beyond it, under the path that scripts know."""

from __future__ import annotations

from pa_callbacks_extra import ConvertSyncBatchNormCallback, EarlyStoppingCallback, ModelEmaCallback
from pa_core import (
    DEFAULT_CALLBACKS,
    CallbackHandler,
    LimitBatchesCallback,
    LimitEvalStepsCallback,
    LogMetricsCallback,
    MoveModulesToDeviceCallback,
    PrintProgressCallback,
    ProgressBarCallback,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    StopTrainingError,
    TerminateOnNaNCallback,
    TrainerCallback,
    get_default_callbacks,
)
from pa_core import LogMetricsCallback as PrintMetricsCallback  # an alias in the documentation of pytorch-accelerated
from pa_schedulers import WSDCheckpointCallback

__all__ = [
    "DEFAULT_CALLBACKS",
    "CallbackHandler",
    "ConvertSyncBatchNormCallback",
    "EarlyStoppingCallback",
    "LimitBatchesCallback",
    "LimitEvalStepsCallback",
    "LogMetricsCallback",
    "ModelEmaCallback",
    "MoveModulesToDeviceCallback",
    "PrintMetricsCallback",
    "PrintProgressCallback",
    "ProgressBarCallback",
    "SaveBestModelCallback",
    "SaveTrainingStateCallback",
    "StepBasedEvaluationCallback",
    "StopTrainingError",
    "TerminateOnNaNCallback",
    "TrainerCallback",
    "WSDCheckpointCallback",
    "get_default_callbacks",
]
