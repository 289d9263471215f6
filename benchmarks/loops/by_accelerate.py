"""The loop of accelerate's own documentation: everything is prepared, and `accumulate` decides when to update."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.tasks import DEVICE, Task, training_loader

__all__ = ["evaluate", "train"]


def accelerator(**kwargs: Any) -> Any:
    """Accelerate has no types."""
    from accelerate import Accelerator

    return Accelerator(cpu=DEVICE.type == "cpu", **kwargs)


def train(task: Task, num_epochs: int) -> None:
    """Train on any number of processes."""
    accelerate = accelerator(gradient_accumulation_steps=task.accumulation, mixed_precision=task.mixed_precision)
    loader: Any = training_loader(task)
    model, optimizer, loader = accelerate.prepare(task.model, task.optimizer, loader)
    for _ in range(num_epochs):
        model.train()
        total = 0.0
        for inputs, targets in loader:
            with accelerate.accumulate(model):
                loss = task.loss_func(model(inputs), targets)
                accelerate.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            total += (loss.item() if DEVICE.type == "cpu" else loss.detach()) * len(targets)


def evaluate(task: Task, times: int) -> None:
    """Evaluate the whole dataset."""
    accelerate = accelerator()
    loader: Any = DataLoader(task.dataset, batch_size=task.batch_size, num_workers=task.num_workers)
    model, loader = accelerate.prepare(task.model, loader)
    for _ in range(times):
        model.eval()
        total = 0.0
        with torch.no_grad():
            for inputs, targets in loader:
                loss = task.loss_func(model(inputs), targets)
                total += loss.item() * len(targets)
