"""ignite, as its documentation starts: a supervised trainer, with the mean loss of each epoch attached."""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from benchmarks.tasks import Task, training_loader

__all__ = ["train"]


def train(task: Task, num_epochs: int) -> None:
    """Train on any number of processes."""
    engine: Any = importlib.import_module("ignite.engine")
    metrics: Any = importlib.import_module("ignite.metrics")
    model: nn.Module = task.model
    sampler: DistributedSampler[Any] | None = None
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        model, sampler = DistributedDataParallel(model), DistributedSampler(task.dataset)
    loader = training_loader(task, sampler)
    trainer = engine.create_supervised_trainer(
        model, task.optimizer, task.loss_func, gradient_accumulation_steps=task.accumulation
    )
    metrics.RunningAverage(output_transform=_as_it_is).attach(trainer, "loss")
    trainer.run(loader, max_epochs=num_epochs)


def _as_it_is(loss: float) -> float:
    return loss
