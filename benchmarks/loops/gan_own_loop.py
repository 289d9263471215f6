"""The same generative adversarial network within a ``Run``, with models and optimizers by name."""

from __future__ import annotations

import torch

from benchmarks.tasks import AdversarialTask
from pa_core import Run

__all__ = ["train"]


def train(task: AdversarialTask, num_epochs: int) -> None:
    """Train on any number of processes."""
    generator, discriminator, loss_func = task.model, task.discriminator, task.loss_func
    with Run(
        {"generator": generator, "discriminator": discriminator},
        {"generator": task.optimizer, "discriminator": task.discriminator_optimizer},
        task.dataset,
        num_epochs=num_epochs,
        per_device_batch_size=task.batch_size,
    ) as run:
        for update in run.updates():
            for (real,) in update:
                noise = torch.randn(len(real), task.noise)
                fake = generator(noise)
                real_scores, fake_scores = discriminator(torch.cat((real, fake.detach()))).split(len(real))
                loss = loss_func(real_scores, torch.ones_like(real_scores))
                loss = loss + loss_func(fake_scores, torch.zeros_like(fake_scores))
                update.backward(loss, model="discriminator")
                update.step("discriminator")
                scores = discriminator(fake)
                update.backward(loss_func(scores, torch.ones_like(scores)), model="generator")
                update.step("generator")
