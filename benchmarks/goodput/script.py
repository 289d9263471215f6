"""A training script as a user writes one: the same command line starts it, and starts it again after a kill."""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from typing_extensions import override

from benchmarks import tasks
from benchmarks.goodput.progress import Moments, Progress, ProgressFile
from pa_core import DEFAULT_CALLBACKS, AnyTrainer, SaveTrainingStateCallback, Trainer, TrainerCallback

__all__ = ["MOMENTS", "OUTCOME", "PROGRESS", "main"]

MOMENTS, OUTCOME, PROGRESS = "moments.json", "outcome.json", "progress"


def digits() -> tuple[tasks.Task, None]:
    """Vectors of 64 numbers in memory, as scikit-learn's digits are, but so many that an epoch takes a second."""
    return replace(tasks.digits(), dataset=tasks.vectors(60_000)), None


def images() -> tuple[tasks.Task, tasks.AugmentedImages]:
    """Augmented images from two workers, a small convolutional network, and an evaluation after each epoch."""
    return replace(tasks.images_in_workers(), dataset=tasks.AugmentedImages(2048)), tasks.AugmentedImages(256)


TASKS = {"digits": digits, "images": images}
"""What is trained, and what it is evaluated on."""


def main(arguments: Sequence[str], moments: Moments) -> None:
    """Train, or go on training."""
    options = _parse(arguments)
    folder: Path = options.folder
    torch.set_num_threads(1)
    torch.manual_seed(0)
    training, eval_dataset = TASKS[options.task]()
    states = SaveTrainingStateCallback(
        folder / "states", save_every_n_seconds=options.save_every, max_checkpoints=2, asynchronous=True
    )
    watch = _Watch(ProgressFile(folder / PROGRESS), moments, folder / MOMENTS)
    moments.note("model, optimizer, data")
    trainer = Trainer(training.model, training.loss_func, training.optimizer, [*DEFAULT_CALLBACKS, states, watch])
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    moments.note("Trainer")
    trainer.train(
        training.dataset,
        1_000_000,
        eval_dataset,
        per_device_batch_size=training.batch_size,
        max_num_train_steps=options.updates,
        train_dataloader_kwargs={"num_workers": training.num_workers},
        eval_dataloader_kwargs={"num_workers": training.num_workers},
        resume_from=folder / "states",
        resume_missing="start",
    )
    outcome = {"updates": trainer.num_updates_completed, "weights": _digest(training.model)}
    losses = list(trainer.run_history.get_metric_values("train_loss_epoch"))
    (folder / OUTCOME).write_text(json.dumps(outcome | {"losses": losses}))


class _Watch(TrainerCallback):
    """Notes down how far the run has come."""

    def __init__(self, file: ProgressFile, moments: Moments, path: Path) -> None:
        self._file = file
        self._moments = moments
        self._path = path
        self._before = file.read().last_update
        self._first: tuple[int, float] | None = None
        self._regained = 0.0

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self._moments.note("state found, read and restored")

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = update, now
            self._moments.note("first update")
            self._moments.write(self._path)
        if update > self._before and not self._regained:
            self._regained = now
        self._file.write(Progress(*self._first, update, now, self._regained))


def _digest(model: nn.Module) -> str:
    """A digest of every bit of the weights and buffers."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where everything goes that the run writes")
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("--updates", type=int, help="when the run is complete")
    parser.add_argument("--save-every", type=float, default=0.5, help="seconds between two training states")
    parser.add_argument("--collecting", action="store_true", help="collect garbage while importing, as Python does")
    return parser.parse_args(arguments)
