"""More callbacks for the trainer of pa-core, and their building blocks.

The public names are those in ``__all__`` of ``pa_callbacks_extra`` and ``pa_callbacks_extra.experiment_trackers``.
"""

from __future__ import annotations

from pa_callbacks_extra.early_stopping import EarlyStoppingCallback
from pa_callbacks_extra.hub import PushToHubCallback, push_to_hub
from pa_callbacks_extra.model_ema import ModelEma
from pa_callbacks_extra.model_ema_callback import ModelEmaCallback, ModelEmaFactory
from pa_callbacks_extra.profiler import ProfilerCallback
from pa_callbacks_extra.sync_batch_norm_callback import ConvertSyncBatchNormCallback
from pa_callbacks_extra.torch_metrics import TorchMetricsCallback
from pa_callbacks_extra.trackers import TrackerCallback

__all__ = [
    "ConvertSyncBatchNormCallback",
    "EarlyStoppingCallback",
    "ModelEma",
    "ModelEmaCallback",
    "ModelEmaFactory",
    "ProfilerCallback",
    "PushToHubCallback",
    "TorchMetricsCallback",
    "TrackerCallback",
    "push_to_hub",
]
