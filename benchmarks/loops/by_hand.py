"""The loops that people write by hand, as PyTorch's own tutorials do, with the mean loss of each epoch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.tasks import DEVICE, Task, training_loader

__all__ = ["evaluate", "evaluate_once", "train", "train_epoch"]


def train(task: Task, num_epochs: int) -> None:
    """Train on one process, or on several with ``DistributedDataParallel``."""
    model: nn.Module = task.model
    sampler: DistributedSampler[Any] | None = None
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        model, sampler = DistributedDataParallel(model), DistributedSampler(task.dataset)
    loader = training_loader(task, sampler)
    for epoch in range(num_epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        if task.accumulation > 1:
            train_epoch_with_accumulation(task, model, loader)
        else:
            train_epoch(task, model, loader)


def train_epoch_with_accumulation(task: Task, model: nn.Module, loader: DataLoader[Any]) -> None:
    """One update for several batches, and for what is left at the end of the epoch."""
    optimizer, loss_func = task.optimizer, task.loss_func
    model.train()
    total = 0.0
    for step, (inputs, targets) in enumerate(loader, start=1):
        loss = loss_func(model(inputs), targets)
        (loss / task.accumulation).backward()
        if step % task.accumulation == 0 or step == len(loader):
            optimizer.step()
            optimizer.zero_grad()
        total += loss.item() * len(targets)


def train_epoch(task: Task, model: nn.Module, batches: Iterable[Sequence[Tensor]]) -> None:
    """One update for each batch."""
    if DEVICE.type == "cuda" or task.mixed_precision != "no":
        train_epoch_on_device(task, model, batches)
        return
    optimizer, loss_func = task.optimizer, task.loss_func
    model.train()
    total = 0.0
    for inputs, targets in batches:
        loss = loss_func(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item() * len(targets)


def train_epoch_on_device(task: Task, model: nn.Module, batches: Iterable[Sequence[Tensor]]) -> None:
    """The same in bf16 or in the precision of the model, with nothing that waits for the device."""
    optimizer, loss_func = task.optimizer, task.loss_func
    model.train()
    total = torch.zeros((), device=DEVICE)
    for batch in batches:
        inputs, targets = (tensor.to(DEVICE, non_blocking=True) for tensor in batch)
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=task.mixed_precision == "bf16"):
            loss = loss_func(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach() * len(targets)


def evaluate(task: Task, times: int) -> None:
    """Evaluate the whole dataset."""
    loader = DataLoader(task.dataset, batch_size=task.batch_size, num_workers=task.num_workers)
    for _ in range(times):
        evaluate_once(task, loader)


def evaluate_once(task: Task, batches: Iterable[Sequence[Tensor]]) -> None:
    """Evaluate some batches."""
    model, loss_func = task.model, task.loss_func
    model.eval()
    total = 0.0
    with torch.no_grad():
        for inputs, targets in batches:
            loss = loss_func(model(inputs), targets)
            total += loss.item() * len(targets)
