"""Lightning Fabric, as its documentation converts a loop by hand: the loop stays, with the mean loss of each epoch."""

from __future__ import annotations

import importlib
import os
from typing import Any

from benchmarks.tasks import Task, training_loader

__all__ = ["train"]


def train(task: Task, num_epochs: int) -> None:
    """Train on any number of processes."""
    lightning: Any = importlib.import_module("lightning.fabric")
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    fabric = lightning.Fabric(accelerator="cpu", devices=processes, strategy="ddp" if processes > 1 else "auto")
    fabric.launch()
    model, optimizer = fabric.setup(task.model, task.optimizer)
    loader = fabric.setup_dataloaders(training_loader(task))
    for _ in range(num_epochs):
        model.train()
        total = 0.0
        for step, (inputs, targets) in enumerate(loader, start=1):
            is_accumulating = step % task.accumulation != 0 and step < len(loader)
            with fabric.no_backward_sync(model, enabled=is_accumulating):
                loss = task.loss_func(model(inputs), targets)
                fabric.backward(loss / task.accumulation)
            if not is_accumulating:
                optimizer.step()
                optimizer.zero_grad()
            total += loss.item() * len(targets)
