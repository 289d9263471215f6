"""pytorch-accelerated, as its documentation starts; in an environment that has the original, not ours."""

from __future__ import annotations

from benchmarks.tasks import Task
from pytorch_accelerated import Trainer

__all__ = ["train"]


def train(task: Task, num_epochs: int) -> None:
    """Train on any number of processes."""
    trainer = Trainer(model=task.model, loss_func=task.loss_func, optimizer=task.optimizer)
    trainer.train(
        train_dataset=task.dataset,
        num_epochs=num_epochs,
        per_device_batch_size=task.batch_size,
        gradient_accumulation_steps=task.accumulation,
        train_dataloader_kwargs={"num_workers": task.num_workers},
    )
