"""Trials in the style of Determined's PyTorch API, on one process or many, without a cluster.

In a program that was written for Determined, ``import pa_trial as pytorch`` takes the place of
``from determined import pytorch``.
"""

from __future__ import annotations

from pa_trial.callback import PyTorchCallback
from pa_trial.errors import (
    CheckFailedError,
    CheckpointNotFound,
    InternalException,
    InvalidCheckpointException,
    InvalidExperimentException,
    InvalidHP,
    MetricReducerError,
    UsageError,
)
from pa_trial.types import Metrics, TorchData, TrainingMetrics
from pa_trial.units import Batch, Epoch, TrainUnit

__all__ = [
    "Batch",
    "CheckFailedError",
    "CheckpointNotFound",
    "Epoch",
    "InternalException",
    "InvalidCheckpointException",
    "InvalidExperimentException",
    "InvalidHP",
    "MetricReducerError",
    "Metrics",
    "PyTorchCallback",
    "TorchData",
    "TrainUnit",
    "TrainingMetrics",
    "UsageError",
]
