"""Trials for tests: tiny, and with callbacks that note down what happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from typing_extensions import override

import pa_trial
from pa_trial import DataLoader, PyTorchCallback, PyTorchTrial, PyTorchTrialContext
from pa_trial.collectives import num_processes
from tests.support.models import weights_of

BATCH_SIZE = 4

TrialT = TypeVar("TrialT", bound="TinyTrial")
ErrorT = TypeVar("ErrorT", bound=BaseException)


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


def returning(value: object) -> Callable[..., Any]:
    """Return a method that returns a value, whatever it is called with."""

    def method(*_args: object, **_kwargs: object) -> object:
        return value

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
    """A linear layer, trained on batches of four; an epoch has four of them on each process.

    Attributes:
        num_samples: How many samples a process trains on.
        first: The weights that it begins with.
        trained: The index of each batch, with that of its epoch.
        notes: Notes down events.
        heard: Keeps what callbacks are told of metrics and checkpoints.
        callbacks: Further callbacks by name, to be set before ``fit``.
    """

    num_samples = 4 * BATCH_SIZE

    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(nn.Linear(2, 1))
        self.first = weights_of(self.model)
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
        return DataLoader(samples(self.num_samples * num_processes()), batch_size=BATCH_SIZE)

    @override
    def build_validation_data_loader(self) -> DataLoader:
        return DataLoader(samples(8), batch_size=BATCH_SIZE)

    def before_batch(self, batch_idx: int) -> None:
        """Do what comes before a batch: nothing."""

    @override
    def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.before_batch(batch_idx)
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


def variant(trial_class: type[TrialT], **attributes: Any) -> type[TrialT]:
    """Return a subclass that has other attributes: functions with a ``self``, or values."""
    made: Any = type(trial_class.__name__, (trial_class,), attributes)
    variant_class: type[TrialT] = made
    return variant_class


def fit(
    trial_class: Callable[[PyTorchTrialContext], TrialT],
    folder: Path,
    callbacks: Mapping[str, PyTorchCallback] | None = None,
    settings: Mapping[str, Any] | None = None,
    **asked: Any,
) -> TrialT:
    """Train a trial of a class and return it; no validation is followed by a checkpoint unless asked for.

    Args:
        trial_class: Called with the context.
        folder: Where checkpoints are.
        callbacks: Callbacks by name, beside those of the trial.
        settings: Further arguments of ``init``.
        asked: Arguments of ``fit``.

    Returns:
        The trial, with its context.
    """
    of_init: dict[str, Any] = {"checkpoint_dir": folder, "seed": 0, **(settings or {})}
    asked = {"checkpoint_policy": "none", **asked}
    with pa_trial.init(**of_init) as context:
        trial = trial_class(context)
        trial.callbacks.update(callbacks or {})
        pa_trial.Trainer(trial, context).fit(**asked)
        return trial


def fit_and_fail(
    trial_class: Callable[[PyTorchTrialContext], TrialT],
    folder: Path,
    error: type[ErrorT],
    text: str | None = None,
    **asked: Any,
) -> tuple[TrialT, ErrorT]:
    """Call ``fit`` for an error with a text that fits the pattern; return the trial and the error."""
    trials: list[TrialT] = []

    def make(context: PyTorchTrialContext) -> TrialT:
        trials.append(trial_class(context))
        return trials[0]

    with pytest.raises(error, match=text) as raised:
        fit(make, folder, **asked)
    return trials[0], raised.value
