"""The loop of PyTorch's tutorial on generative adversarial networks, with two optimizers."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from benchmarks.tasks import AdversarialTask, training_loader

__all__ = ["train"]


def train(task: AdversarialTask, num_epochs: int) -> None:
    """Train on one process, or on several with ``DistributedDataParallel``."""
    generator: nn.Module = task.model
    discriminator: nn.Module = task.discriminator
    sampler: DistributedSampler[Any] | None = None
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        generator, discriminator = DistributedDataParallel(generator), DistributedDataParallel(discriminator)
        sampler = DistributedSampler(task.dataset)
    loader = training_loader(task, sampler)
    for epoch in range(num_epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        totals = [0.0, 0.0]
        for (real,) in loader:
            noise = torch.randn(len(real), task.noise)
            fake = generator(noise)
            real_scores, fake_scores = discriminator(torch.cat((real, fake.detach()))).split(len(real))
            loss = task.loss_func(real_scores, torch.ones_like(real_scores))
            loss = loss + task.loss_func(fake_scores, torch.zeros_like(fake_scores))
            task.discriminator_optimizer.zero_grad()
            loss.backward()
            task.discriminator_optimizer.step()
            # The module itself: gradients that this pass leaves in the discriminator are cleared, and not exchanged.
            scores = task.discriminator(fake)
            loss_of_generator = task.loss_func(scores, torch.ones_like(scores))
            task.optimizer.zero_grad()
            loss_of_generator.backward()
            task.optimizer.step()
            totals[0] += loss.item() * len(real)
            totals[1] += loss_of_generator.item() * len(real)
