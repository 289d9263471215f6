"""The loop by hand at its fastest where the data is in memory: no loader, and each batch is one indexing operation.

The trainer fetches such batches whole too, so that this loop is the one that shows what the trainer itself adds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from benchmarks.tasks import Task

__all__ = ["evaluate", "train"]


def train(task: Task, num_epochs: int) -> None:
    """Train on one process, with one update for each batch."""
    model, optimizer, loss_func = task.model, task.optimizer, task.loss_func
    dataset = cast("TensorDataset", task.dataset)
    for _ in range(num_epochs):
        model.train()
        total = 0.0
        for inputs, targets in whole_batches(dataset, torch.randperm(len(dataset)), task.batch_size):
            loss = loss_func(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.item() * len(targets)


def evaluate(task: Task, times: int) -> None:
    """Evaluate the whole dataset."""
    model, loss_func = task.model, task.loss_func
    dataset = cast("TensorDataset", task.dataset)
    for _ in range(times):
        model.eval()
        total = 0.0
        with torch.no_grad():
            for inputs, targets in whole_batches(dataset, torch.arange(len(dataset)), task.batch_size):
                loss = loss_func(model(inputs), targets)
                total += loss.item() * len(targets)


def whole_batches(dataset: TensorDataset, order: Tensor, batch_size: int) -> Iterator[tuple[Tensor, ...]]:
    """Index the dataset once for each batch."""
    for indices in torch.split(order, batch_size):
        yield dataset[indices]
