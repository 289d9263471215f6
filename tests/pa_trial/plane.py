"""A trial that fits a plane, for programs in the manner of the reference's code samples.

With a global batch of four of sixteen samples, an epoch has four batches of each process, on one process and on two;
and what is trained is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import TensorDataset
from typing_extensions import override

import pa_trial as pytorch
from pa_trial import PyTorchTrialContext

__all__ = [
    "HPARAMS",
    "Listener",
    "Plane",
    "assert_same_weights",
    "by_hand",
    "fit",
    "listening",
    "samples",
    "small_model",
]

HPARAMS = {"global_batch_size": 4, "lr": 0.05}


def samples() -> TensorDataset:
    """Sixteen points of a plane."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(16, 2, generator=generator)
    return TensorDataset(inputs, inputs @ torch.tensor([[2.0], [-1.0]]) + 1)


def small_model(seed: int = 0) -> nn.Module:
    """The same network on each process."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


class Plane(pytorch.PyTorchTrial[list[Tensor]]):
    """Fits the plane, and keeps what the methods are called with."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(small_model())
        self.optimizer: torch.optim.Optimizer = context.wrap_optimizer(
            SGD(self.model.parameters(), lr=context.get_hparam("lr"))
        )
        self.trained: list[tuple[int, int]] = []
        self.evaluated: list[int] = []

    @override
    def build_training_data_loader(self) -> pytorch.DataLoader | TorchDataLoader[Any]:
        return pytorch.DataLoader(samples(), batch_size=self.context.get_per_slot_batch_size())

    @override
    def build_validation_data_loader(self) -> pytorch.DataLoader | TorchDataLoader[Any]:
        return pytorch.DataLoader(samples(), batch_size=self.context.get_per_slot_batch_size())

    def loss(self, batch: Sequence[Tensor]) -> Tensor:
        """The mean squared error of a batch."""
        inputs, targets = batch
        return nn.functional.mse_loss(self.model(inputs), targets)

    @override
    def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
        self.trained.append((epoch_idx, batch_idx))
        loss = self.loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    @override
    def evaluate_batch(self, batch: list[Tensor], batch_idx: int) -> pytorch.Metrics:
        self.evaluated.append(batch_idx)
        return {"validation_loss": self.loss(batch)}


class Listener(pytorch.PyTorchCallback):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.averages: list[pytorch.Metrics] = []
        self.batch_metrics: list[list[pytorch.Metrics]] = []
        self.validations: list[pytorch.Metrics] = []
        self.uuids: list[str] = []

    @property
    def names(self) -> list[str]:
        """The kinds of events, in order."""
        return [what[0] for what in self.heard]

    @override
    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        self.heard.append(("startup", first_batch_idx, checkpoint_uuid))

    @override
    def on_trial_shutdown(self) -> None:
        self.heard.append(("shutdown",))

    @override
    def on_training_start(self) -> None:
        self.heard.append(("training start",))

    @override
    def on_training_epoch_start(self, epoch_idx: int) -> None:
        self.heard.append(("epoch start", epoch_idx))

    @override
    def on_training_epoch_end(self, epoch_idx: int) -> None:
        self.heard.append(("epoch end", epoch_idx))

    @override
    def on_training_workload_end(self, avg_metrics: pytorch.Metrics, batch_metrics: list[pytorch.Metrics]) -> None:
        self.heard.append(("workload", len(batch_metrics)))
        self.averages.append(avg_metrics)
        self.batch_metrics.append(batch_metrics)

    @override
    def on_validation_start(self) -> None:
        self.heard.append(("validation start",))

    @override
    def on_validation_epoch_start(self) -> None:
        self.heard.append(("validation epoch start",))

    @override
    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        self.heard.append(("validation epoch end", len(outputs)))

    @override
    def on_validation_end(self, metrics: pytorch.Metrics) -> None:
        self.heard.append(("validation end",))
        self.validations.append(metrics)

    @override
    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.heard.append(("upload end",))
        self.uuids.append(uuid)


def listening(trial_class: type[Plane], listener: pytorch.PyTorchCallback) -> Callable[[PyTorchTrialContext], Plane]:
    """The trial with a callback."""

    class Listened(trial_class):  # type: ignore[valid-type, misc]
        @override
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {"listener": listener}

    return Listened


def fit(
    make_trial: Callable[[PyTorchTrialContext], Plane],
    folder: Path,
    max_length: pytorch.TrainUnit | None = None,
    *,
    init: dict[str, Any] | None = None,
    **settings: Any,
) -> Plane:
    """Train, for an epoch by default."""
    settings = {"checkpoint_policy": "none", **settings}
    arguments: dict[str, Any] = {"hparams": HPARAMS, "checkpoint_dir": folder, **(init or {})}
    with pytorch.init(**arguments) as context:
        trial = make_trial(context)
        pytorch.Trainer(trial, context).fit(max_length=max_length or pytorch.Epoch(1), **settings)
    return trial


def by_hand(num_batches: int, *, aggregation: int = 1, lr: float = 0.05) -> nn.Module:
    """The network after so many global batches of a loop by hand."""
    model = small_model()
    optimizer = SGD(model.parameters(), lr=lr)
    inputs, targets = samples().tensors
    for index in range(num_batches):
        chosen = slice(4 * (index % 4), 4 * (index % 4) + 4)
        loss = nn.functional.mse_loss(model(inputs[chosen]), targets[chosen])
        torch.autograd.backward(loss / aggregation)
        if (index + 1) % aggregation == 0:
            optimizer.step()
            optimizer.zero_grad()
    return model


def assert_same_weights(model: nn.Module, expected: nn.Module) -> None:
    """Up to the order in which gradients are added."""
    for parameter, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(parameter, other)
