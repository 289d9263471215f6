"""What training states read from a run and restore in it, including a custom loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from pa_core.epoch_lengths import EpochLengths
from pa_core.run_config import TrainerRunConfig
from pa_core.tracking import LossTracker, RunHistory, StepMeans
from pa_core.types import SizedIterable, StatefulScheduler


class _HasCallbacks(Protocol):
    @property
    def callbacks(self) -> Sequence[object]: ...


class Snapshotable(Protocol):
    """A run whose state can be saved and restored.

    Models, optimizers and schedulers are named. With one of each they are called "model", "optimizer" and "scheduler";
    where there are several, a scheduler has the name of its optimizer.
    """

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        ...

    @property
    def loss_func(self) -> object:
        """The loss function; part of the state if it is a module."""
        ...

    @property
    def run_history(self) -> RunHistory:
        """The recorded metrics."""
        ...

    @property
    def callback_handler(self) -> _HasCallbacks:
        """The callbacks; those with a ``state_dict`` are part of the state."""
        ...

    @property
    def loss_tracker(self) -> LossTracker:
        """The losses of the epoch so far, of this process."""
        ...

    @property
    def step_means(self) -> StepMeans:
        """The values logged in the epoch so far, of this process."""
        ...

    @property
    def train_dataloader(self) -> SizedIterable:
        """The training loader."""
        ...

    @property
    def eval_dataloader(self) -> SizedIterable | None:
        """The evaluation loader, None without one."""
        ...

    @property
    def eval_dataloaders(self) -> Mapping[str, SizedIterable]:
        """The loaders of the evaluation sets by name; empty where there is one dataset, or none."""
        ...

    def named_models(self) -> Mapping[str, nn.Module]:
        """Return the models without wrappers, by name."""
        ...

    def named_optimizers(self) -> Mapping[str, Optimizer]:
        """Return the optimizers, by name."""
        ...

    def named_schedulers(self) -> Mapping[str, StatefulScheduler]:
        """Return the schedulers of the run, by name."""
        ...

    def print(self, *args: object, **kwargs: Any) -> None:
        """Print once per node."""
        ...


class ResumableRun(Snapshotable, Protocol):
    """A run that is in progress: it may be resumed, and its states saved at safe points."""

    @property
    def run_config(self) -> TrainerRunConfig:
        """The settings of the run."""
        ...

    @property
    def epoch_lengths(self) -> EpochLengths:
        """How many updates each epoch has."""
        ...

    @property
    def preemptible(self) -> bool:
        """Whether evaluations look between their batches for a request to end the run."""
        ...
