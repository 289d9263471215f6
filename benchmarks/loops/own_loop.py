"""The loop by hand, within a ``Run``."""

from __future__ import annotations

from benchmarks.tasks import Task
from pa_core import Run

__all__ = ["train"]


def train(task: Task, num_epochs: int) -> None:
    """Train on any number of processes."""
    model, loss_func = task.model, task.loss_func
    with Run(
        model,
        task.optimizer,
        task.dataset,
        num_epochs=num_epochs,
        per_device_batch_size=task.batch_size,
        gradient_accumulation_steps=task.accumulation,
        train_dataloader_kwargs={"num_workers": task.num_workers},
        mixed_precision=task.mixed_precision,
    ) as run:
        for update in run.updates():
            for inputs, targets in update:
                update.backward(loss_func(model(inputs), targets))
            update.step()
