"""Small runs with everything that a training state has to hold, and what tells two of them apart."""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import Dataset
from typing_extensions import override

from pa_checkpoint import Folder
from pa_core import AnyTrainer, SaveBestModelCallback, SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_core.testing import TinyClassifier


class DrawingDataset(Dataset[tuple[Tensor, Tensor]]):
    """Draws from all three global streams for each sample; the number of the sample can be read from it."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        draw = torch.rand(5) + random.random() + float(np.random.rand())
        return torch.cat([torch.tensor([float(index)]), draw]), torch.tensor(index % 3)


class DropoutNetwork(nn.Module):
    """Draws in its forward pass, and keeps statistics, some of them out of its state dict."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        hidden = (nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3))
        self.layers = nn.Sequential(*hidden, nn.Linear(16, 3))
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.seen += len(inputs)
        logits: Tensor = self.layers(inputs[:, 1:]) * (1 + self.seen / 1000)
        return logits


class SampleLog(TrainerCallback):
    """Notes which samples each step had on all processes, and what was drawn for them; a part of training states."""

    def __init__(self) -> None:
        self.steps: list[list[list[float]]] = []

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self.steps.append(trainer.gather(batch[0][:, :2]).tolist())

    @override
    def state_dict(self) -> dict[str, Any]:
        """Everything noted so far."""
        return {"steps": self.steps}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on behind what was noted then."""
        self.steps = state_dict["steps"]

    @property
    def indices(self) -> list[int]:
        """The numbers of the samples, in order."""
        return [int(row[0]) for step in self.steps for row in step]


class Interrupted(Exception):
    """Stands for whatever ends a process."""


class InterruptAt(TrainerCallback):
    """Fails in an event, from an update on, as a process does that is killed there."""

    def __init__(self, event: str, update: int, error: type[BaseException] = Interrupted) -> None:
        def fail(trainer: AnyTrainer, **kwargs: Any) -> None:
            if trainer.num_updates_completed >= update:
                raise error

        vars(self)[event] = fail


@contextmanager
def interrupting(trainer: Trainer, update: int) -> Generator[None]:
    """Within the context, the run of a trainer fails after an update."""
    interrupt = InterruptAt("on_train_step_end", update)
    trainer.callback_handler.add_callback(interrupt)
    with pytest.raises(Interrupted):
        yield
    trainer.callback_handler.remove_callback(interrupt)


class SavesToo(SaveTrainingStateCallback):
    """A second callback that saves: two of one class are refused."""


def updates_in(folder: Path) -> list[int]:
    """The updates after which the states in a folder were saved, in the order of saving."""
    return [record.update for record in Folder(folder).records()]


def cosine(optimizer: Optimizer) -> CosineAnnealingLR:
    """A schedule over a little more than the runs here."""
    return CosineAnnealingLR(optimizer, T_max=30)


def make_trainer(*callbacks: TrainerCallback, best: Path | None = None, seed: int = 1) -> Trainer:
    """A trainer as a script makes it at each start."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    model = DropoutNetwork()
    optimizer = Adam(model.parameters(), lr=0.01)
    saving = [] if best is None else [SaveBestModelCallback(best)]
    return Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[SampleLog(), *saving, *callbacks])


def train(trainer: Trainer, num_epochs: int = 3, **options: Any) -> dict[str, Any]:
    """Run with an evaluation after each epoch, and return the fingerprint of its end; 52 samples make 7 batches.

    Without workers, unless told otherwise: starting them takes longer than such a run.
    """
    settings: dict[str, Any] = {
        "per_device_batch_size": 8,
        "create_scheduler_fn": cosine,
        "eval_dataset": DrawingDataset(20),
        "train_dataloader_kwargs": {"num_workers": 0},
        "eval_dataloader_kwargs": {"num_workers": 0},
    }
    trainer.train(options.pop("dataset", DrawingDataset(52)), num_epochs, **{**settings, **options})
    return fingerprint(trainer)


def log_of(trainer: AnyTrainer) -> SampleLog:
    """The log of the samples of a run."""
    return next(one for one in trainer.callback_handler.callbacks if isinstance(one, SampleLog))


def fingerprint(trainer: Trainer) -> dict[str, Any]:
    """Everything by which a run can differ from another one, to the last bit, seconds left out; draws from streams."""
    best = [one for one in trainer.callback_handler.callbacks if isinstance(one, SaveBestModelCallback)]
    return {
        "weights": {name: value.tolist() for name, value in trainer.model.state_dict().items()},
        "optimizer": _plain(trainer.optimizer.state_dict()),
        "scheduler": None if trainer.scheduler is None else _plain(trainer.scheduler.state_dict()),
        "history": [
            (record["metric"], record["value"], record["epoch"], record["update"], record["samples"])
            for record in _records(trainer)
        ],
        "samples": log_of(trainer).steps,
        "updates": trainer.num_updates_completed,
        "best": [one.best.state_dict() for one in best],
        "streams": (torch.rand(3).tolist(), random.random(), float(np.random.rand())),
    }


def _records(trainer: Trainer) -> list[dict[str, Any]]:
    table: Any = trainer.run_history
    columns: dict[str, list[Any]] = table.to_dict()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


class UnfreezeInSecondEpoch(TrainerCallback):
    """Trains the first layer too, from the second epoch on, with a parameter group of its own."""

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        first: Any = trainer.get_model().get_submodule("layers.0")
        if trainer.run_history.current_epoch == 2 and not first.weight.requires_grad:
            first.requires_grad_(True)
            trainer.optimizer.add_param_group({"params": list(first.parameters())})


def frozen_trainer(*callbacks: TrainerCallback) -> Trainer:
    """A trainer of a model whose first layer is frozen until the second epoch."""
    torch.manual_seed(0)
    model = TinyClassifier()
    model.layers[0].requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = SGD(trained, lr=0.1, momentum=0.9)
    return Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[UnfreezeInSecondEpoch(), *callbacks])
