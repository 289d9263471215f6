"""The loop by hand as a trial. What ends each `fit` is a part of it: a validation, which is empty, and a checkpoint."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils.data import Subset
from typing_extensions import override

import pa_trial
from benchmarks.processes import shared_folder
from benchmarks.tasks import Task

__all__ = ["TaskTrial", "train"]


class TaskTrial(pa_trial.PyTorchTrial[list[Tensor]]):
    """Trains the network of a task."""

    def __init__(self, context: pa_trial.PyTorchTrialContext, task: Task) -> None:
        self.context = context
        self.task = task
        self.model = context.wrap_model(task.model)
        self.optimizer = context.wrap_optimizer(task.optimizer)
        self.loss_func = task.loss_func

    @override
    def build_training_data_loader(self) -> pa_trial.DataLoader:
        task = self.task
        return pa_trial.DataLoader(task.dataset, task.batch_size, shuffle=True, num_workers=task.num_workers)

    @override
    def build_validation_data_loader(self) -> pa_trial.DataLoader:
        return pa_trial.DataLoader(Subset[Any](self.task.dataset, range(2)))

    @override
    def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pa_trial.Metrics:
        inputs, targets = batch
        loss = self.loss_func(self.model(inputs), targets)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    @override
    def evaluate_batch(self, batch: list[Tensor], batch_idx: int) -> pa_trial.Metrics:
        return {"nothing": 0.0}


def train(task: Task, num_epochs: int, trial_class: type[TaskTrial] = TaskTrial) -> None:
    """Train on any number of processes."""
    with (
        shared_folder() as folder,
        pa_trial.init(aggregation_frequency=task.accumulation, checkpoint_dir=folder) as context,
    ):
        trial = trial_class(context, task)
        pa_trial.Trainer(trial, context).fit(max_length=pa_trial.Epoch(num_epochs), checkpoint_policy="none")
