"""Trials for tests: tiny, and with callbacks that note down what happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from typing_extensions import override

import pa_trial
from pa_trial import DataLoader, PyTorchCallback, PyTorchTrial, PyTorchTrialContext

__all__ = ["EventNotes", "Heard", "TinyTrial", "callback", "fit", "raising", "samples", "without_policy"]

BATCH_SIZE = 4

TrialT = TypeVar("TrialT", bound="TinyTrial")


def samples(number: int = 4 * BATCH_SIZE) -> TensorDataset:
    """Samples of a linear problem, the same in each call."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(number, 2, generator=generator)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def callback(**methods: Callable[..., Any]) -> PyTorchCallback:
    """Return a callback of whose methods some are functions, which get no ``self``."""
    made: type[PyTorchCallback]
    made = type("Made", (PyTorchCallback,), {name: staticmethod(method) for name, method in methods.items()})
    return made()


def raising(error: BaseException) -> Callable[..., NoReturn]:
    """Return a method that raises an error, whatever it is called with."""

    def method(*_args: object, **_kwargs: object) -> NoReturn:
        raise error

    return method


class Heard(PyTorchCallback):
    """Keeps what it is told of metrics, and the folders of checkpoints that it is told of."""

    def __init__(self) -> None:
        self.training: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        self.validation: list[dict[str, Any]] = []
        self.outputs: list[list[Any]] = []
        self.folders: list[str] = []

    @override
    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        self.training.append((dict(avg_metrics), batch_metrics))

    @override
    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        self.outputs.append(outputs)

    @override
    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        self.validation.append(dict(metrics))

    @override
    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        self.folders.append(checkpoint_dir)


class EventNotes(PyTorchCallback):
    """Notes down workloads (W), validations (V) and checkpoints (C), each with the number of batches done."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.events: list[str] = []

    def note(self, event: str) -> None:
        """Note down an event."""
        progress = self.context._run_parts().progress  # pyright: ignore[reportPrivateUsage]  # counts by no other way
        self.events.append(f"{event}{progress.batches_trained}")

    @override
    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        self.note("W")

    @override
    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        self.note("V")

    @override
    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.note("C")


class TinyTrial(PyTorchTrial[list[Tensor]]):
    """A linear layer, trained on batches of four; an epoch has four of them on one process.

    Attributes:
        trained: The index of each batch, with that of its epoch.
        notes: Notes down events.
        heard: Keeps what callbacks are told of metrics and checkpoints.
        callbacks: Further callbacks by name, to be set before ``fit``.
    """

    num_samples = 4 * BATCH_SIZE

    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(nn.Linear(2, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.05))
        self.trained: list[tuple[int, int]] = []
        self.notes = EventNotes(context)
        self.heard = Heard()
        self.callbacks: dict[str, PyTorchCallback] = {}

    @override
    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        return {"notes": self.notes, "heard": self.heard, **self.callbacks}

    @override
    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(samples(self.num_samples), batch_size=BATCH_SIZE)

    @override
    def build_validation_data_loader(self) -> DataLoader:
        return DataLoader(samples(8), batch_size=BATCH_SIZE)

    @override
    def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.trained.append((epoch_idx, batch_idx))
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    @override
    def evaluate_batch(self, batch: list[Tensor], batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        return {"val_loss": nn.functional.mse_loss(self.model(inputs), targets)}


def without_policy(asked: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of fit by which no validation is followed by a checkpoint, unless they ask for it."""
    return {"checkpoint_policy": "none", **asked}


def fit(
    trial_class: type[TrialT], folder: Path, callbacks: Mapping[str, PyTorchCallback] | None = None, **asked: Any
) -> TrialT:
    """Train a trial of a class and return it; no validation is followed by a checkpoint unless asked for."""
    with pa_trial.init(checkpoint_dir=folder, seed=0) as context:
        trial = trial_class(context)
        trial.callbacks.update(callbacks or {})
        pa_trial.Trainer(trial, context).fit(**without_policy(asked))
        return trial
