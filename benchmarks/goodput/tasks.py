"""What is trained while processes are killed: a network that starts at once, and one with workers and evaluations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import Dataset, TensorDataset

from benchmarks.tasks import TASKS as BENCHMARKS
from benchmarks.tasks import AugmentedImages, Task

__all__ = ["TASKS", "GoodputTask"]


@dataclass(frozen=True)
class GoodputTask:
    """What a script trains, and what it evaluates.

    Attributes:
        training: The network, its data, and how it is trained.
        eval_dataset: Samples to evaluate after each epoch; None for none.
    """

    training: Task
    eval_dataset: Dataset[Any] | None = None


def digits() -> GoodputTask:
    """Vectors of 64 numbers in memory, as scikit-learn's digits are, but so many that an epoch takes a second."""
    inputs, targets = torch.rand(60_000, 64), torch.randint(10, (60_000,))
    return GoodputTask(replace(BENCHMARKS["digits"](), dataset=TensorDataset(inputs, targets)))


def images() -> GoodputTask:
    """Augmented images from two workers, a small convolutional network, and an evaluation after each epoch."""
    return GoodputTask(replace(BENCHMARKS["images_in_workers"](), dataset=AugmentedImages(2048)), AugmentedImages(256))


TASKS: dict[str, Callable[[], GoodputTask]] = {"digits": digits, "images": images}
