"""A trial with everything that makes resuming hard, and a record of all that it does."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ExponentialLR, StepLR
from torch.utils.data import Dataset
from typing_extensions import override

import pa_trial
from pa_trial import Batch, DataLoader, LRScheduler, PyTorchCallback, PyTorchTrial, PyTorchTrialContext, Trainer
from pa_trial.collectives import rank

__all__ = ["Augmented", "Counting", "Outcome", "Resumable", "fit", "states_of"]

SAMPLES, FEATURES, CLASSES = 26, 5, 3


class Augmented(Dataset[tuple[Tensor, int, int, Tensor]]):
    """Noise, changed by a draw from each of the three random streams."""

    def __init__(self, size: int = SAMPLES) -> None:
        generator = torch.Generator().manual_seed(3)
        self._inputs = torch.randn(size, FEATURES, generator=generator)

    def __len__(self) -> int:
        return len(self._inputs)

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, int, int, Tensor]:
        draws = torch.tensor([random.random(), np.random.rand(), float(torch.rand(()))])
        return self._inputs[index] + 0.3 * draws.sum(), index % CLASSES, index, draws


class Centre(nn.Module):
    """Takes a moving average from its inputs, the faster the fewer of them it has seen, and freezes what it is told."""

    mean: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(FEATURES))
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
            self.mean.lerp_(inputs.detach().mean(0), 1 / float(self.seen))
        return inputs - self.mean


class Counting(PyTorchCallback):
    """Counts epochs, and draws a number at each of them."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.drawn: list[float] = []
        self.loaded: dict[str, Any] | None = None

    @override
    def on_training_epoch_start(self, epoch_idx: int) -> None:
        self.epochs.append(epoch_idx)
        self.drawn.append(random.random())

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs, "drawn": self.drawn, "array": np.arange(3), "number": np.float64(0.5)}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loaded = state_dict
        self.epochs, self.drawn = list(state_dict["epochs"]), list(state_dict["drawn"])


class Resumable(PyTorchTrial):
    """Two models with an optimizer and a schedule each; the bias of one of them is frozen in the fourth batch.

    Attributes:
        workers: The processes that load data, to be set before ``fit``, as what follows.
        stops_after: The number of batches after which it asks to stop, at a boundary; None for never.
    """

    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.workers = 0
        self.stops_after: int | None = None
        self.batches: dict[int, Any] = {}
        self.counting = Counting()
        torch.manual_seed(1)  # each start of a script makes the same models, and resuming does not rely on it
        self.body = context.wrap_model(_make_body())
        self.head = context.wrap_model(nn.Linear(8, CLASSES))
        self.first = context.wrap_optimizer(Adam(self.body.parameters(), lr=0.01))
        self.second = context.wrap_optimizer(SGD(self.head.parameters(), lr=0.05, momentum=0.9))
        context.wrap_lr_scheduler(StepLR(self.first, 2, gamma=0.8), LRScheduler.StepMode.STEP_EVERY_EPOCH)
        context.wrap_lr_scheduler(ExponentialLR(self.second, 0.95), LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP)

    @override
    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(Augmented(), batch_size=4, shuffle=True, num_workers=self.workers)

    @override
    def build_validation_data_loader(self) -> DataLoader:
        return DataLoader(Augmented(7), batch_size=4)

    @override
    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        return {"counting": self.counting}

    @override
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets, indices, draws = batch
        if batch_idx == 3:
            self.head.bias.requires_grad_(False)
        if batch_idx + 1 == self.stops_after:
            self.context.set_stop_requested(True)
        noise = random.random() + float(np.random.rand()) + float(torch.rand(()))
        loss = functional.cross_entropy(self.head(self.body(inputs * (1 + 0.1 * noise))), targets)
        self.batches[batch_idx] = (epoch_idx, indices.tolist(), draws.tolist(), noise, loss.item())
        self.context.backward(loss)
        self.context.step_optimizer(self.first)
        self.context.step_optimizer(self.second)
        return {"loss": loss}

    @override
    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        inputs, targets, *_ = batch
        return {"error": functional.cross_entropy(self.head(self.body(inputs)), targets) + torch.rand(())}


def _make_body() -> nn.Module:
    return nn.Sequential(Centre(), nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))


@dataclass
class Outcome:
    """What a training left behind.

    Attributes:
        trial: The trial.
        states: What is to be the same to the last bit.
        batches: What ``train_batch`` was given and drew, by the index of the batch.
        names: The names of the checkpoints in its folder, the oldest one first.
    """

    trial: Resumable
    states: dict[str, Any]
    batches: dict[int, Any]
    names: list[str] = field(default_factory=list[str])


def fit(
    folder: Path,
    length: int,
    latest: str | None = None,
    *,
    stops_after: int | None = None,
    workers: int = 0,
    trial_class: type[Resumable] = Resumable,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Outcome:
    """Train as a script does, with a validation after every fourth batch and a checkpoint after every fifth one."""
    # Of a training that is resumed, nothing may come from anywhere but the checkpoint.
    chance = 5 + rank() if latest is None else int.from_bytes(os.urandom(4), "big")
    random.seed(chance)
    np.random.seed(chance)
    torch.manual_seed(chance)
    with pa_trial.init(checkpoint_dir=folder, **(settings or {})) as context:
        trial = trial_class(context)
        trial.workers, trial.stops_after = workers, stops_after
        Trainer(trial, context).fit(
            max_length=Batch(length),
            checkpoint_period=Batch(5),
            validation_period=Batch(4),
            checkpoint_policy="none",
            latest_checkpoint=latest,
            **options,
        )
        states = states_of(trial)
    names = sorted((path.name for path in folder.iterdir()), key=lambda name: (folder / name).stat().st_mtime_ns)
    return Outcome(trial, states, trial.batches, names)


def states_of(trial: Resumable) -> dict[str, Any]:
    """Return all that a later batch depends on."""
    context = trial.context
    return {
        "models": [model.state_dict() for model in context.models],
        "optimizers": [optimizer.state_dict() for optimizer in context.optimizers],
        "schedulers": [scheduler.state_dict() for scheduler in context.lr_schedulers],
        "gradients": [None if one.grad is None else one.grad for model in context.models for one in model.parameters()],
        "callback": (trial.counting.epochs, trial.counting.drawn),
        "draws": (random.getstate(), np.random.get_state(), torch.get_rng_state()),
    }
