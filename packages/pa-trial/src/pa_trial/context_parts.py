"""The parts of a trial's context, which the training loop uses."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from torch.profiler import profile

from pa_trial.distributed_context import DistributedContext
from pa_trial.experimental import PyTorchExperimentalContext
from pa_trial.metric_reducers import MetricReducers
from pa_trial.progress import TrialProgress
from pa_trial.settings import ExperimentSettings, RunSettings
from pa_trial.tensorboard import TensorBoard
from pa_trial.to_device import DeviceMover
from pa_trial.trained_parts import TrainedParts


class Stage(StrEnum):
    """The stage of a training; processes can exchange data only in the same stage."""

    START = "at the start of the run"
    TRAINING = "in the training of an epoch"
    EVALUATION = "in an evaluation"
    RUN_END = "at the end of the run"


@dataclass
class ContextParts:
    """The parts of a context.

    Attributes:
        settings: Hyperparameters and experiment configuration.
        run_settings: The other arguments of ``init``.
        progress: The counters of the training.
        trained: Models, optimizers, schedulers and the scaler.
        reducers: The metric reducers.
        tensorboard: The folder and the writer for TensorBoard.
        mover: Moves batches to the device of this process.
        distributed: The rank of this process, and the collectives for users.
        experimental: The options of ``context.experimental``.
        aggregation_frequency: The number of batches whose gradients are accumulated for an optimizer step.
        trial_seed: The seed that was passed to ``init``; None if no seed was passed.
        profiler: The profiler that the user has set; None if no profiler was set.
        stop_requested: Whether this process should end the training.
        stage: The stage of the training; empty before and after it.
        logs_to_tensorboard: Whether metrics are written for TensorBoard.
    """

    settings: ExperimentSettings
    run_settings: RunSettings
    progress: TrialProgress
    trained: TrainedParts
    reducers: MetricReducers
    tensorboard: TensorBoard
    mover: DeviceMover
    distributed: DistributedContext
    experimental: PyTorchExperimentalContext
    aggregation_frequency: int
    trial_seed: int | None
    profiler: profile | None = None
    stop_requested: bool = False
    stage: str = ""
    logs_to_tensorboard: bool = True
