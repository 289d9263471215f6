"""A trial in double precision whose updates have a size that does not fit anything."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR, StepLR
from torch.utils.data import TensorDataset
from typing_extensions import override

import pa_trial
from pa_trial import DataLoader, LRScheduler, PyTorchTrialContext
from tests.support.models import weights_of
from tests.support.trials import EventNotes, TinyTrial

__all__ = ["EPOCHS", "SAMPLES", "UPDATE", "Numbered", "double_model", "numbered", "sizes"]

SAMPLES, UPDATE = 27, 7
"""Four updates an epoch, the last one of six samples. Nothing divides the others."""
EPOCHS = 3


def double_model() -> nn.Linear:
    """The same layer in each call."""
    torch.manual_seed(1)
    return nn.Linear(2, 1).double()


class Numbered(TinyTrial):
    """Double precision, a random order, momentum and two schedules; knows which samples it was given, and when."""

    workers, drops_last = 0, False

    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(double_model())
        self.first = weights_of(self.model)
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9))
        modes = LRScheduler.StepMode
        context.wrap_lr_scheduler(ExponentialLR(self.optimizer, 0.97), modes.STEP_EVERY_OPTIMIZER_STEP)
        context.wrap_lr_scheduler(StepLR(self.optimizer, 1, gamma=0.8), modes.STEP_EVERY_EPOCH)
        self.trained: list[tuple[int, int]] = []
        self.given: list[tuple[int, list[int]]] = []
        self.notes = EventNotes(context)
        self.callbacks = {}

    @override
    def build_callbacks(self) -> dict[str, pa_trial.PyTorchCallback]:
        return {"notes": self.notes, **self.callbacks}

    @override
    def build_training_data_loader(self) -> Any:
        return DataLoader(numbered(), shuffle=True, num_workers=self.workers, drop_last=self.drops_last)

    def loss(self, batch: list[Tensor]) -> Tensor:
        """The mean over the samples."""
        inputs, _ = batch
        return nn.functional.mse_loss(self.model(inputs), inputs.square().sum(1, keepdim=True))

    @override
    def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.before_batch(batch_idx)
        self.trained.append((epoch_idx, batch_idx))
        self.given.append((batch_idx, batch[1].tolist()))
        loss = self.loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    @override
    def evaluate_batch(self, batch: list[Tensor], batch_idx: int) -> dict[str, Any]:
        return {"val_loss": 0.0}


def numbered() -> TensorDataset:
    """Points of a plane, each with its number."""
    inputs = torch.randn(SAMPLES, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return TensorDataset(inputs, torch.arange(SAMPLES))


def sizes(samples_per_update: Any = UPDATE, per_device_batch_size: Any = 3, **others: Any) -> dict[str, Any]:
    """The arguments of ``init``."""
    return {"samples_per_update": samples_per_update, "per_device_batch_size": per_device_batch_size, **others}
