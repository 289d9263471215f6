"""Trains trials in the style of Determined's PyTorch API, on one or many processes, without a cluster.

In a program that was written for Determined, ``import pa_trial as pytorch`` takes the place of
``from determined import pytorch``.

The public names are those in ``__all__`` of ``pa_trial`` and of ``pa_trial.samplers``.
"""

from __future__ import annotations

from pa_trial import samplers
from pa_trial.callback import PyTorchCallback
from pa_trial.cluster import get_cluster_info
from pa_trial.context import PyTorchTrialContext
from pa_trial.data_length import data_length
from pa_trial.data_loader import DataLoader
from pa_trial.distributed_context import DistributedContext
from pa_trial.errors import (
    CheckFailedError,
    CheckpointNotFound,
    EmptyLoaderError,
    InternalException,
    InvalidCheckpointException,
    InvalidExperimentException,
    InvalidHP,
    MetricReducerError,
    NoCheckpointError,
    NoMetricsError,
    UsageError,
)
from pa_trial.experimental import PyTorchExperimentalContext
from pa_trial.initialize import init
from pa_trial.load_trial import load_trial_from_checkpoint_path
from pa_trial.lr_scheduler import LRScheduler
from pa_trial.metric_reducers import CallableReducer
from pa_trial.reducer import MetricReducer, Reducer
from pa_trial.to_device import to_device
from pa_trial.trainer import Trainer
from pa_trial.trial import PyTorchTrial
from pa_trial.types import Metrics, TorchData, TrainingMetrics
from pa_trial.units import Batch, Epoch, TrainUnit

__all__ = [
    "Batch",
    "CallableReducer",
    "CheckFailedError",
    "CheckpointNotFound",
    "DataLoader",
    "DistributedContext",
    "EmptyLoaderError",
    "Epoch",
    "InternalException",
    "InvalidCheckpointException",
    "InvalidExperimentException",
    "InvalidHP",
    "LRScheduler",
    "MetricReducer",
    "MetricReducerError",
    "Metrics",
    "NoCheckpointError",
    "NoMetricsError",
    "PyTorchCallback",
    "PyTorchExperimentalContext",
    "PyTorchTrial",
    "PyTorchTrialContext",
    "Reducer",
    "TorchData",
    "TrainUnit",
    "Trainer",
    "TrainingMetrics",
    "UsageError",
    "data_length",
    "get_cluster_info",
    "init",
    "load_trial_from_checkpoint_path",
    "samplers",
    "to_device",
]
