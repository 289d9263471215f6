"""The same generative adversarial network as a trial."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

import pa_trial
from benchmarks.loops import trial
from benchmarks.tasks import AdversarialTask, Task

__all__ = ["train"]


class GanTrial(trial.TaskTrial):
    """Trains the two networks of a task."""

    def __init__(self, context: pa_trial.PyTorchTrialContext, task: Task) -> None:
        assert isinstance(task, AdversarialTask)
        super().__init__(context, task)
        self.noise = task.noise
        self.discriminator = context.wrap_model(task.discriminator)
        self.discriminator_optimizer = context.wrap_optimizer(task.discriminator_optimizer)

    @override
    def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pa_trial.Metrics:
        (real,) = batch
        noise = torch.randn(len(real), self.noise)
        fake = self.model(noise)
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


def train(task: AdversarialTask, num_epochs: int) -> None:
    """Train on any number of processes."""
    trial.train(task, num_epochs, GanTrial)
