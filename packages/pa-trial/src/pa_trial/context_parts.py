"""The parts of a trial's context, which the training loop works with."""

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
    """What a training is in, as far as processes must be in the same to come together."""

    START = "at the start of the run"
    TRAINING = "in the training of an epoch"
    EVALUATION = "in an evaluation"
    RUN_END = "at the end of the run"


@dataclass
class ContextParts:
    """What a context consists of.

    Attributes:
        settings: Hyperparameters and experiment configuration.
        run_settings: The other arguments of ``init``.
        progress: How far the training has come.
        trained: Models, optimizers, schedulers and the scaler.
        reducers: The metric reducers.
        tensorboard: The folder and the writer for TensorBoard.
        mover: Moves batches to the device of this process.
        distributed: Which of the processes of the training this one is, and what they exchange for the user.
        experimental: The options of ``context.experimental``.
        aggregation_frequency: The number of batches whose gradients are accumulated for one optimizer step.
        trial_seed: The seed that was passed to ``init``; None without one.
        profiler: The profiler that the user has set; None without one.
        stop_requested: Whether this process should end the training.
        stage: What the training is in; empty outside of it.
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
