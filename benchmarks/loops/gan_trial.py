"""The same generative adversarial network as a trial."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset
from typing_extensions import override

import pa_trial
from benchmarks.processes import shared_folder
from benchmarks.tasks import AdversarialTask

__all__ = ["train"]


class GanTrial(pa_trial.PyTorchTrial[list[Tensor]]):
    """Trains the two networks of a task."""

    def __init__(self, context: pa_trial.PyTorchTrialContext, task: AdversarialTask) -> None:
        self.context = context
        self.task = task
        self.loss_func = task.loss_func
        self.generator = context.wrap_model(task.model)
        self.discriminator = context.wrap_model(task.discriminator)
        self.optimizer = context.wrap_optimizer(task.optimizer)
        self.discriminator_optimizer = context.wrap_optimizer(task.discriminator_optimizer)

    @override
    def build_training_data_loader(self) -> pa_trial.DataLoader:
        return pa_trial.DataLoader(self.task.dataset, self.task.batch_size, shuffle=True)

    @override
    def build_validation_data_loader(self) -> pa_trial.DataLoader:
        return pa_trial.DataLoader(Subset[Any](self.task.dataset, range(2)))

    @override
    def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pa_trial.Metrics:
        (real,) = batch
        noise = torch.randn(len(real), self.task.noise)
        fake = self.generator(noise)
        self.discriminator.requires_grad_(True)
        real_scores, fake_scores = self.discriminator(torch.cat((real, fake.detach()))).split(len(real))
        loss = self.loss_func(real_scores, torch.ones_like(real_scores))
        loss = loss + self.loss_func(fake_scores, torch.zeros_like(fake_scores))
        self.context.backward(loss)
        self.context.step_optimizer(self.discriminator_optimizer)
        self.discriminator.requires_grad_(False)
        scores = self.discriminator(fake)
        loss_of_generator = self.loss_func(scores, torch.ones_like(scores))
        self.context.backward(loss_of_generator)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss, "loss_of_generator": loss_of_generator}

    @override
    def evaluate_batch(self, batch: list[Tensor], batch_idx: int) -> pa_trial.Metrics:
        return {"nothing": 0.0}


def train(task: AdversarialTask, num_epochs: int) -> None:
    """Train on any number of processes."""
    with shared_folder() as folder, pa_trial.init(checkpoint_dir=folder) as context:
        trial = GanTrial(context, task)
        pa_trial.Trainer(trial, context).fit(max_length=pa_trial.Epoch(num_epochs), checkpoint_policy="none")
