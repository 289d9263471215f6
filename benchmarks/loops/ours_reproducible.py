"""The trainer in a reproducible run, whose micro-batches are as large as the batches of a process."""

from __future__ import annotations

from benchmarks.tasks import Task
from pa_core import DEFAULT_CALLBACKS, Trainer
from pa_core.distributed import num_processes

__all__ = ["train"]


def train(task: Task, num_epochs: int) -> None:
    """Train on any number of processes."""
    trainer = Trainer(task.model, task.loss_func, task.optimizer, DEFAULT_CALLBACKS, reproducible="any_processes")
    trainer.train(
        task.dataset,
        num_epochs,
        per_device_batch_size=task.batch_size,
        samples_per_update=task.batch_size * task.accumulation * num_processes(),
        train_dataloader_kwargs={"num_workers": task.num_workers},
    )
