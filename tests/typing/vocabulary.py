"""The models, batches, trainers and callbacks that the typing tests talk about, written as a user would."""

# torch leaves an argument of ReduceLROnPlateau.step open
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import AnyTrainer, BatchOutput, Trainer, TrainerCallback


class Net(nn.Module):
    """A model with parts of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 3)
        self.head = nn.Linear(3, 2)

    @override
    def forward(self, pixels: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(pixels))
        return logits


class OtherNet(nn.Module):
    """A model of another class."""


@dataclass(frozen=True)
class Batch:
    """What the loaders of ``NetTrainer`` yield: pixels of shape ``(samples, 4)`` and their labels."""

    pixels: Tensor
    labels: Tensor


class Output(BatchOutput):
    """What the steps of ``NetTrainer`` return."""

    confidence: Tensor


class NetTrainer(Trainer[Net, Batch, Output]):
    """A trainer of ``Net`` that declares its batches and what its steps return."""

    smoothing: float = 0.1

    @override
    def calculate_train_batch_loss(self, batch: Batch) -> Output:
        logits = self.model(batch.pixels)
        loss = nn.functional.cross_entropy(logits, batch.labels, label_smoothing=self.smoothing)
        confidence = logits.softmax(1).amax(1)
        return {"loss": loss, "model_outputs": logits, "batch_size": len(batch.labels), "confidence": confidence}

    @override
    def calculate_eval_batch_loss(self, batch: Batch) -> Output:
        return self.calculate_train_batch_loss(batch)


class PlateauTrainer(Trainer[Net, tuple[Tensor, Tensor], BatchOutput, ReduceLROnPlateau]):
    """A trainer whose scheduler is stepped with a metric, and whose batches and steps are the default ones."""

    @override
    def scheduler_step(self) -> None:
        """Wait for the end of the epoch."""

    @override
    def training_run_epoch_end(self) -> None:
        if self.scheduler is not None:
            self.scheduler.step(float(self.run_history.get_latest_metric("train_loss_epoch")))


class ForAnyTrainer(TrainerCallback):
    """A callback for whatever trainer there is."""

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        trainer.print(trainer.run_history.current_epoch)


class ForNetTrainer(TrainerCallback[NetTrainer, Batch, Output]):
    """A callback that needs what ``NetTrainer`` alone has."""

    def __init__(self) -> None:
        self.confidence = 0.0

    @override
    def on_train_epoch_start(self, trainer: NetTrainer, **kwargs: Any) -> None:
        trainer.smoothing /= 2

    @override
    def on_train_step_end(self, trainer: NetTrainer, batch: Batch, batch_output: Output, **kwargs: Any) -> None:
        self.confidence = batch_output["confidence"].mean().item()


class CheckPixels(TrainerCallback):
    """A callback with an event of its own, which ``FindingTrainer`` calls."""

    def __init__(self) -> None:
        self.brightest = 0.0

    def on_pixels(self, trainer: AnyTrainer, pixels: Tensor, labels: Tensor) -> None:
        """Called with the first batch of each epoch."""
        self.brightest = max(self.brightest, pixels.amax().item())


def collate(samples: list[tuple[Tensor, Tensor]]) -> Batch:
    """Make a batch of the samples of ``make_data``."""
    pixels, labels = zip(*samples, strict=True)
    return Batch(torch.stack(pixels), torch.stack(labels))


def make_data(num_samples: int = 8) -> TensorDataset:
    """Return samples of four pixels and a label."""
    return TensorDataset(torch.arange(4 * num_samples).view(-1, 4) / 10, torch.arange(num_samples) % 2)


def make_optimizer(model: nn.Module) -> Optimizer:
    """Return an optimizer of all parameters of a model."""
    return SGD(model.parameters(), lr=0.1)
