"""The trainer as it comes, with its default callbacks."""

from __future__ import annotations

from benchmarks.tasks import Task
from pa_core import DEFAULT_CALLBACKS, Trainer
from pa_core.callbacks import CallbackLike
from pa_data.orders import Order

__all__ = ["evaluate", "train"]


def train(
    task: Task,
    num_epochs: int,
    callbacks: tuple[CallbackLike, ...] = DEFAULT_CALLBACKS,
    order: Order | None = None,
) -> None:
    """Train on any number of processes."""
    trainer = Trainer(task.model, task.loss_func, task.optimizer, callbacks, mixed_precision=task.mixed_precision)
    trainer.train(
        task.dataset,
        num_epochs,
        per_device_batch_size=task.batch_size,
        gradient_accumulation_steps=task.accumulation,
        train_dataloader_kwargs={"num_workers": task.num_workers},
        order=order,
    )


def evaluate(task: Task, times: int, callbacks: tuple[CallbackLike, ...] = DEFAULT_CALLBACKS) -> None:
    """Evaluate the whole dataset."""
    trainer = Trainer(task.model, task.loss_func, None, callbacks)
    for _ in range(times):
        trainer.evaluate(task.dataset, task.batch_size, {"num_workers": task.num_workers})
