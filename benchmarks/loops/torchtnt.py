"""torchtnt, as its documentation advises: an `AutoUnit` that calculates the loss, with the mean loss of each epoch."""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor

from benchmarks.tasks import DEVICE, Task, training_loader

__all__ = ["train"]


def train(task: Task, num_epochs: int) -> None:
    """Train on one process."""
    framework: Any = importlib.import_module("torchtnt.framework")

    class Unit(framework.AutoUnit):  # type: ignore[misc]  # its class is not known to the checker
        def __init__(self) -> None:
            super().__init__(
                module=task.model, device=DEVICE, gradient_accumulation_steps=task.accumulation, precision=None
            )
            self.total = 0.0

        def configure_optimizers_and_lr_scheduler(self, _module: Any) -> tuple[Any, None]:
            return task.optimizer, None

        def compute_loss(self, _state: Any, data: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            inputs, targets = data
            outputs = self.module(inputs)
            return task.loss_func(outputs, targets), outputs

        def on_train_step_end(self, _state: Any, data: tuple[Tensor, Tensor], _step: int, results: Any) -> None:
            self.total += results.loss.item() * len(data[1])

        def on_train_epoch_end(self, state: Any) -> None:
            super().on_train_epoch_end(state)
            self.total = 0.0

    framework.train(Unit(), training_loader(task), max_epochs=num_epochs)
