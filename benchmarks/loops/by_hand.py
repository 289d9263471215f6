"""The loops that people write by hand, as PyTorch's own tutorials do, with the mean loss of each epoch."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.tasks import Task, training_loader

__all__ = ["evaluate", "train"]


def train(task: Task, num_epochs: int) -> None:
    """Train on one process, or on several with ``DistributedDataParallel``."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        train_on_several_processes(task, num_epochs)
    elif task.accumulation > 1:
        train_with_accumulation(task, num_epochs)
    else:
        train_on_one_process(task, num_epochs)


def train_on_one_process(task: Task, num_epochs: int) -> None:
    """One update for each batch."""
    loader = training_loader(task)
    for _ in range(num_epochs):
        train_epoch(task, task.model, loader)


def train_with_accumulation(task: Task, num_epochs: int) -> None:
    """One update for several batches, and for what is left at the end of an epoch."""
    model, optimizer, loss_func = task.model, task.optimizer, task.loss_func
    loader = training_loader(task)
    for _ in range(num_epochs):
        model.train()
        total = 0.0
        for step, (inputs, targets) in enumerate(loader, start=1):
            loss = loss_func(model(inputs), targets)
            (loss / task.accumulation).backward()
            if step % task.accumulation == 0 or step == len(loader):
                optimizer.step()
                optimizer.zero_grad()
            total += loss.item() * len(targets)


def train_on_several_processes(task: Task, num_epochs: int) -> None:
    """One update for the batches of all processes."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    model: nn.Module = DistributedDataParallel(task.model)
    sampler: DistributedSampler[Any] = DistributedSampler(task.dataset)
    loader = training_loader(task, sampler)
    for epoch in range(num_epochs):
        sampler.set_epoch(epoch)
        train_epoch(task, model, loader)


def train_epoch(task: Task, model: nn.Module, loader: DataLoader[Any]) -> None:
    """One update for each batch of the loader."""
    optimizer, loss_func = task.optimizer, task.loss_func
    model.train()
    total = 0.0
    for inputs, targets in loader:
        loss = loss_func(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item() * len(targets)


def evaluate(task: Task, times: int) -> None:
    """Evaluate the whole dataset."""
    model, loss_func = task.model, task.loss_func
    loader = DataLoader(task.dataset, batch_size=task.batch_size, num_workers=task.num_workers)
    for _ in range(times):
        model.eval()
        total = 0.0
        with torch.no_grad():
            for inputs, targets in loader:
                loss = loss_func(model(inputs), targets)
                total += loss.item() * len(targets)
