"""A training loop for PyTorch that you can read: the trainer, its callbacks, and what they record.

Public are the names in ``__all__`` of ``pa_core``, ``pa_core.callbacks``, ``pa_core.data``, ``pa_core.distributed``,
``pa_core.files``, ``pa_core.orders``, ``pa_core.parts``, ``pa_core.plot_style``, ``pa_core.predictions``,
``pa_core.storage`` and ``pa_core.testing``.
"""

from __future__ import annotations

from pa_core.any_trainer import AnyTrainer
from pa_core.callbacks import (
    DEFAULT_CALLBACKS,
    CallbackHandler,
    LimitBatches,
    LimitBatchesCallback,
    LimitEvalStepsCallback,
    LogMetricsCallback,
    MoveModulesToDeviceCallback,
    PrintProgressCallback,
    ProgressBarCallback,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    TerminateOnNaNCallback,
    TrainerCallback,
    get_default_callbacks,
)
from pa_core.custom_loop import Run, Update
from pa_core.data import DataLoaderSlice, EvaluationSet, KeyedDataLoader
from pa_core.distributed import gather_objects
from pa_core.distributed.processes import (
    local_process_zero_first,
    local_process_zero_only,
    notebook_launcher,
    world_process_zero_only,
)
from pa_core.errors import (
    ArgumentTypeError,
    BatchMismatchError,
    BatchOutputError,
    CheckpointError,
    ConfigurationError,
    EmptyDatasetError,
    ExplainedError,
    FolderInUseError,
    MetricNotFoundError,
    NonFiniteLossError,
    OtherProcessError,
    OverrideError,
    RanksDifferError,
    ShardError,
    StateNotFoundError,
    StopTrainingError,
    TrainingPreempted,
    UnsupportedConfigurationError,
)
from pa_core.model_description import describe_model
from pa_core.model_tensors import unwrap_model
from pa_core.placeholders import TrainerPlaceholderValues, resolve_placeholders
from pa_core.run_config import TrainerRunConfig
from pa_core.timm_trainer import TimmSchedulerLike, TrainerWithTimmScheduler
from pa_core.tracking import InMemoryRunHistory, LossTracker, MetricRecord, RunClock, RunHistory, StepMeans
from pa_core.tracking.plot import plot_run_history
from pa_core.trainer import Trainer
from pa_core.types import BatchOutput, SchedulerLike, SizedIterable, StatefulScheduler, SupportsStateDict

__all__ = [
    "DEFAULT_CALLBACKS",
    "AnyTrainer",
    "ArgumentTypeError",
    "BatchMismatchError",
    "BatchOutput",
    "BatchOutputError",
    "CallbackHandler",
    "CheckpointError",
    "ConfigurationError",
    "DataLoaderSlice",
    "EmptyDatasetError",
    "EvaluationSet",
    "ExplainedError",
    "FolderInUseError",
    "InMemoryRunHistory",
    "KeyedDataLoader",
    "LimitBatches",
    "LimitBatchesCallback",
    "LimitEvalStepsCallback",
    "LogMetricsCallback",
    "LossTracker",
    "MetricNotFoundError",
    "MetricRecord",
    "MoveModulesToDeviceCallback",
    "NonFiniteLossError",
    "OtherProcessError",
    "OverrideError",
    "PrintProgressCallback",
    "ProgressBarCallback",
    "RanksDifferError",
    "Run",
    "RunClock",
    "RunHistory",
    "SaveBestModelCallback",
    "SaveTrainingStateCallback",
    "SchedulerLike",
    "ShardError",
    "SizedIterable",
    "StateNotFoundError",
    "StatefulScheduler",
    "StepBasedEvaluationCallback",
    "StepMeans",
    "StopTrainingError",
    "SupportsStateDict",
    "TerminateOnNaNCallback",
    "TimmSchedulerLike",
    "Trainer",
    "TrainerCallback",
    "TrainerPlaceholderValues",
    "TrainerRunConfig",
    "TrainerWithTimmScheduler",
    "TrainingPreempted",
    "UnsupportedConfigurationError",
    "Update",
    "describe_model",
    "gather_objects",
    "get_default_callbacks",
    "local_process_zero_first",
    "local_process_zero_only",
    "notebook_launcher",
    "plot_run_history",
    "resolve_placeholders",
    "unwrap_model",
    "world_process_zero_only",
]
