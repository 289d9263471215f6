"""A training loop for PyTorch that you can read: the trainer, its callbacks, and their metrics.

The public names are those in ``__all__`` of ``pa_core``, ``pa_core.callbacks``, ``pa_core.data``,
``pa_core.distributed``, ``pa_core.engine.exchange``, ``pa_core.errors``, ``pa_core.predictions``, ``pa_core.sharding``,
``pa_core.steps.default_step``, ``pa_core.testing``, ``pa_core.torch_names``, ``pa_core.tracking``,
``pa_core.tracking.plot_style``, ``pa_core.types`` and ``pa_core.user_warnings``.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING

from pa_core._tensors import unwrap_model
from pa_core.callbacks import (
    DEFAULT_CALLBACKS,
    CallbackHandler,
    LimitBatches,
    LimitBatchesCallback,
    LimitEvalStepsCallback,
    LogMetricsCallback,
    MoveModulesToDeviceCallback,
    PreemptionNotice,
    PrintProgressCallback,
    ProgressBarCallback,
    SaveAndContinue,
    SaveAndStop,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    TerminateOnNaNCallback,
    TrainerCallback,
    get_default_callbacks,
)
from pa_core.data import EvaluationSet
from pa_core.distributed import gather_objects
from pa_core.distributed.processes import (
    local_process_zero_first,
    local_process_zero_only,
    notebook_launcher,
    world_process_zero_only,
)
from pa_core.engine.any_trainer import AnyTrainer
from pa_core.engine.model_description import describe_model
from pa_core.errors import (
    ArgumentTypeError,
    BatchMismatchError,
    BatchOutputError,
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
    ExplainedError,
    FolderInUseError,
    MetricNotFoundError,
    NonFiniteLossError,
    OtherProcessError,
    RanksDifferError,
    SmallerBatchNeeded,
    StopTrainingError,
    TrainingPreempted,
    UnsupportedConfigurationError,
)
from pa_core.run_config import TrainerRunConfig
from pa_core.steps.placeholders import TrainerPlaceholderValues, resolve_placeholders
from pa_core.tracking import InMemoryRunHistory, RunHistory
from pa_core.trainer import Trainer
from pa_core.types import BatchOutput

if TYPE_CHECKING:
    from pa_core.custom_loop import Run, Update
    from pa_core.timm_trainer import TrainerWithTimmScheduler
    from pa_core.tracking.plot import plot_run_history

__all__ = [
    "DEFAULT_CALLBACKS",
    "AnyTrainer",
    "ArgumentTypeError",
    "BatchMismatchError",
    "BatchOutput",
    "BatchOutputError",
    "CallbackHandler",
    "CheckpointError",
    "CheckpointNotFoundError",
    "ConfigurationError",
    "EvaluationSet",
    "ExplainedError",
    "FolderInUseError",
    "InMemoryRunHistory",
    "LimitBatches",
    "LimitBatchesCallback",
    "LimitEvalStepsCallback",
    "LogMetricsCallback",
    "MetricNotFoundError",
    "MoveModulesToDeviceCallback",
    "NonFiniteLossError",
    "OtherProcessError",
    "PreemptionNotice",
    "PrintProgressCallback",
    "ProgressBarCallback",
    "RanksDifferError",
    "Run",
    "RunHistory",
    "SaveAndContinue",
    "SaveAndStop",
    "SaveBestModelCallback",
    "SaveTrainingStateCallback",
    "SmallerBatchNeeded",
    "StepBasedEvaluationCallback",
    "StopTrainingError",
    "TerminateOnNaNCallback",
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

_IMPORTED_WHEN_USED = {
    "Run": "pa_core.custom_loop",
    "TrainerWithTimmScheduler": "pa_core.timm_trainer",
    "Update": "pa_core.custom_loop",
    "plot_run_history": "pa_core.tracking.plot",
}
"""Names that few scripts use, and their modules, which an import of this package need not load."""

_HOMES = {
    "DataLoaderSlice": "pa_core.data",
    "EmptyDatasetError": "pa_core.errors",
    "KeyedDataLoader": "pa_core.data",
    "LossTracker": "pa_core.tracking",
    "MetricRecord": "pa_core.tracking",
    "OverrideError": "pa_core.errors",
    "RunClock": "pa_core.tracking",
    "SchedulerLike": "pa_core.types",
    "SizedIterable": "pa_core.types",
    "StatefulScheduler": "pa_core.types",
    "StepMeans": "pa_core.tracking",
    "SupportsStateDict": "pa_core.types",
    "TimmSchedulerLike": "pa_core.timm_trainer",
}
"""The new modules of names that used to be in this module."""


if not TYPE_CHECKING:  # type checkers report unknown names themselves

    def __getattr__(name: str) -> object:
        """Import an object when it is first used, or return an object that used to be here, with a warning."""
        if name in _IMPORTED_WHEN_USED:
            value = getattr(importlib.import_module(_IMPORTED_WHEN_USED[name]), name)
            globals()[name] = value
            return value
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        warnings.warn(f"Import {name} from {_HOMES[name]}.", DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(_HOMES[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
