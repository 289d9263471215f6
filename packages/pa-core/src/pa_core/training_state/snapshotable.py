"""The interface of runs whose state can be saved and restored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from pa_core.data.epoch_lengths import EpochLengths
from pa_core.run_config import TrainerRunConfig
from pa_core.tracking import LossTracker, RunHistory, StepMeans
from pa_core.types import SizedIterable, StatefulScheduler


class _HasCallbacks(Protocol):
    @property
    def callbacks(self) -> Sequence[object]: ...


class ResumableRun(Protocol):
    """A run whose state can be saved and restored.

    Models, optimizers and schedulers are named. A single model, optimizer and scheduler have the names "model",
    "optimizer" and "scheduler"; with several optimizers, a scheduler has the name of its optimizer.

    Attributes:
        run_history: The recorded metrics.
        run_config: The settings of the run.
        eval_dataloader: The evaluation loader, or None.
        epoch_lengths: The numbers of updates in each epoch.
        preemptible: Whether a preemption can interrupt evaluations between batches.
    """

    run_history: RunHistory
    run_config: TrainerRunConfig
    eval_dataloader: SizedIterable | None
    epoch_lengths: EpochLengths
    preemptible: bool

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        ...

    @property
    def train_dataloader(self) -> SizedIterable:
        """The training loader."""
        ...

    @property
    def loss_func(self) -> object:
        """The loss function; part of the state if it is a module."""
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
    def eval_dataloaders(self) -> Mapping[str, SizedIterable]:
        """The loaders of the evaluation sets by name; empty for a single dataset, or none."""
        ...

    def named_models(self) -> Mapping[str, nn.Module]:
        """Return the models without wrappers, by name."""
        ...

    def untrained_modules(self) -> Mapping[str, nn.Module]:
        """Return further modules without an optimizer, by name; steps may change them."""
        ...

    def named_optimizers(self) -> Mapping[str, Optimizer]:
        """Return the optimizers, by name."""
        ...

    def named_schedulers(self) -> Mapping[str, StatefulScheduler]:
        """Return the schedulers of the run, by name."""
        ...

    @property
    def is_main_process(self) -> bool:
        """Whether this is the process of rank zero."""
        ...

    def print(self, *args: object, **kwargs: Any) -> None:
        """Print once per node."""
        ...


LOSS_FUNC = "loss_func"
"""The name of a loss function among the modules of a run."""


def modules_of(run: ResumableRun) -> dict[str, nn.Module]:
    """Return the models, the modules without an optimizer, and the loss function if it is a module, by name.

    Args:
        run: The run.
    """
    loss_func = {LOSS_FUNC: run.loss_func} if isinstance(run.loss_func, nn.Module) else {}
    return {**run.named_models(), **run.untrained_modules(), **loss_func}
