"""A trial that fits a line and writes down which samples it was trained on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from typing_extensions import override

import pa_trial as pytorch


class Numbers(Dataset[tuple[Tensor, Tensor]]):
    """Sample i is the number i, and its target 3 i + 1."""

    def __init__(self, length: int = 8) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        number = torch.tensor([float(index)])
        return number, 3 * number + 1


class LineTrial(pytorch.PyTorchTrial[tuple[Tensor, Tensor]]):
    """Four batches of two samples make an epoch."""

    shuffle = False

    @override
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9))
        self.seen: list[list[float]] = []
        self.batches: list[tuple[int, int]] = []

    @override
    def train_batch(self, batch: tuple[Tensor, Tensor], epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
        numbers, targets = batch
        self.seen.append(numbers.flatten().tolist())
        self.batches.append((epoch_idx, batch_idx))
        loss = nn.functional.mse_loss(self.model(numbers), targets)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    @override
    def evaluate_batch(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> pytorch.Metrics:
        numbers, targets = batch
        return {"error": nn.functional.l1_loss(self.model(numbers), targets)}

    @override
    def build_training_data_loader(self) -> Any:
        return pytorch.DataLoader(Numbers(), batch_size=2, shuffle=self.shuffle)

    @override
    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(Numbers(), batch_size=2)


def fit(
    folder: Path, trial_class: Callable[[pytorch.PyTorchTrialContext], Any], *, batches: int = 4, **options: Any
) -> Any:
    """Train a trial for so many batches, with checkpoints in a folder, and return it."""
    of_init: dict[str, Any] = {name: options.pop(name) for name in OF_INIT & options.keys()}
    of_init = {"seed": 1, **of_init}
    with pytorch.init(checkpoint_dir=folder, **of_init) as context:
        trial = trial_class(context)
        options = {"max_length": pytorch.Batch(batches), "checkpoint_policy": "none", **options}
        pytorch.Trainer(trial, context).fit(**options)
    return trial


OF_INIT = {
    "aggregation_frequency",
    "exp_conf",
    "hparams",
    "max_checkpoints",
    "metric",
    "seed",
    "smaller_is_better",
    "stop_on_signals",
    "tensorboard_path",
}


def with_tests() -> dict[str, str]:
    """The environment of a script that imports this module."""
    paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted(_folders_with(folder, "metadata.json"), key=lambda path: path.stat().st_mtime_ns)


def _folders_with(folder: Path, name: str) -> Iterable[Path]:
    return (path.parent for path in folder.rglob(name))
