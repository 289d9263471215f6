"""The loop by hand at its fastest where the data is in memory: no loader, and each batch is one indexing operation.

The trainer fetches such batches whole too, so that this loop is the one that shows what the trainer itself adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from benchmarks.loops.by_hand import evaluate_once, train_epoch
from benchmarks.tasks import DEVICE, Task

__all__ = ["evaluate", "train"]


def train(task: Task, num_epochs: int) -> None:
    """Train on one process, with one update for each batch."""
    for _ in range(num_epochs):
        train_epoch(task, task.model, whole_batches(task, torch.randperm))


def evaluate(task: Task, times: int) -> None:
    """Evaluate the whole dataset."""
    for _ in range(times):
        evaluate_once(task, whole_batches(task, torch.arange))


def whole_batches(task: Task, order: Callable[[int], Tensor]) -> Iterator[Sequence[Tensor]]:
    """Index the dataset once for each batch."""
    dataset = cast("TensorDataset", task.dataset)
    for indices in torch.split(order(len(dataset)), task.batch_size):
        batch = dataset[indices]
        yield [tensor.pin_memory() for tensor in batch] if DEVICE.type == "cuda" else batch
