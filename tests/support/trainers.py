"""Trainers of small models."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import SGD

from pa_core import RunHistory, Trainer
from pa_core.callbacks import CallbackLike
from pa_core.testing import TinyClassifier
from pa_core.types import LossFunction

AnyKind = TypeVar("AnyKind", bound="Trainer[Any, Any, Any, Any]")


def classifier_trainer(kind: type[AnyKind], *callbacks: CallbackLike) -> AnyKind:
    """A trainer of a small classifier, the same each time, with these callbacks only."""
    torch.default_generator.manual_seed(0)
    model = TinyClassifier()
    return kind(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks)


def linear_trainer(
    *callbacks: CallbackLike, loss_func: LossFunction | None = None, run_history: RunHistory | None = None
) -> Trainer[nn.Linear]:
    """A trainer of a linear model with four inputs."""
    model = nn.Linear(4, 1)
    return Trainer(model, loss_func or nn.MSELoss(), SGD(model.parameters(), lr=0.01), callbacks, run_history)
