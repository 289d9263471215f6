"""Trainers of small models."""

from __future__ import annotations

from torch import nn
from torch.optim import SGD

from pa_core import RunHistory, Trainer
from pa_core.callbacks import CallbackLike
from pa_core.types import LossFunction


def linear_trainer(
    *callbacks: CallbackLike, loss_func: LossFunction | None = None, run_history: RunHistory | None = None
) -> Trainer[nn.Linear]:
    """A trainer of a linear model with four inputs."""
    model = nn.Linear(4, 1)
    return Trainer(model, loss_func or nn.MSELoss(), SGD(model.parameters(), lr=0.01), callbacks, run_history)
