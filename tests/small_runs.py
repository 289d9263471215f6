"""A tiny regression that shows what a run does."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import AnyTrainer, Trainer, TrainerCallback
from tests.support.callbacks import Notes


def samples(number: int) -> TensorDataset:
    """Points on a line, in double precision, numbered by their first feature."""
    inputs = torch.stack([torch.arange(number, dtype=torch.float64), torch.linspace(-1, 1, number).double()], dim=1)
    return TensorDataset(inputs, inputs[:, 1:] * 2)


def linear() -> nn.Linear:
    """The same small model each time."""
    torch.default_generator.manual_seed(0)
    return nn.Linear(2, 1).double()


def make_trainer(
    trainer_class: type[Trainer] = Trainer, *callbacks: Any, model: nn.Module | None = None, lr: float = 1e-4
) -> Trainer:
    """A trainer of a linear model."""
    model = model or linear()
    return trainer_class(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=lr), callbacks=callbacks)


class NoteBatches(TrainerCallback):
    """Notes the numbers of the samples of each batch."""

    def __init__(self) -> None:
        self.trained: list[list[int]] = Notes()
        self.evaluated: list[int] = Notes()

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self.trained.append([int(number) for number in batch[0][:, 0]])

    @override
    def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self.evaluated += [int(number) for number in trainer.gather(batch[0])[:, 0]]
