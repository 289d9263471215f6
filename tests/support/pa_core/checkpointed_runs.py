"""Runs of which checkpoints are saved, and what these hold."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer, lr_scheduler

from pa_core import Trainer
from pa_core.testing import make_classification

DATA = make_classification(24)


def halving(optimizer: Optimizer) -> lr_scheduler.StepLR:
    """Half the rate after each second update."""
    return lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


def train(trainer: Trainer[Any], updates: int = 5) -> None:
    """Some updates."""
    trainer.train(DATA, 1, max_num_train_steps=updates, create_scheduler_fn=halving)


def state_of(trainer: Trainer[Any]) -> dict[str, Any]:
    """Everything that a checkpoint holds, as a copy."""
    assert trainer.scheduler is not None
    states = (trainer.get_model().state_dict(), trainer.optimizer.state_dict(), trainer.scheduler.state_dict())
    return copy.deepcopy(dict(zip(("model", "optimizer", "scheduler"), states, strict=True)))


def same(one: Any, other: Any) -> bool:
    """Whether two nested states are equal, tensors to the last bit."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    values: Any = one
    if isinstance(one, dict):
        return bool(values.keys() == other.keys()) and all(same(values[key], other[key]) for key in values)
    if isinstance(one, (list, tuple)):
        return len(values) == len(other) and all(map(same, values, other))
    return bool(values == other)
