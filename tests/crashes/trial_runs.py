"""A trial with two optimizers, a schedule each, shuffling and workers, which is killed and continued."""

from __future__ import annotations

import json
import math
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR
from torch.utils.data import Dataset
from typing_extensions import override

import pa_trial
from pa_core.distributed import rank
from pa_trial import Batch, DataLoader, Epoch, LRScheduler, PyTorchCallback, PyTorchTrial, PyTorchTrialContext, Trainer
from tests.crashes.custom_loops import CLASSES, FEATURES
from tests.crashes.phases import Phase
from tests.crashes.recording import digest, outcome_path, samples_path
from tests.crashes.watching import WatchCallback

__all__ = ["STATUS_OF_PREEMPTED", "train_trial"]

STATUS_OF_PREEMPTED = 75
BATCH_SIZE = 4


class Notes(PyTorchCallback):
    """Notes down where the process is, and in the state of the chief what the validations said.

    Attributes:
        errors: The result of each validation but the last one, which a signal may leave no time for.
        as_trained: Digests of what was trained, taken after the last batch.
    """

    def __init__(self, trial: Noisy, watching: WatchCallback | None) -> None:
        self._trial = trial
        self._watching = watching
        self.errors: list[float] = []
        self.as_trained: dict[str, str] = {}

    def enter(self, phase: Phase) -> None:
        """Say what comes now."""
        if self._watching is not None:
            self._watching.enter(phase)

    @override
    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        if self._watching is not None and first_batch_idx > 0:
            self._watching.note_resume()
            self._trial.is_first_batch = True

    @override
    def on_training_epoch_start(self, epoch_idx: int) -> None:
        self.enter(Phase.EPOCH_EDGE)

    @override
    def on_training_epoch_end(self, epoch_idx: int) -> None:
        self.enter(Phase.EPOCH_EDGE)

    @override
    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        if self._trial.num_batches == self._trial.num_batches_of_run:
            self.as_trained = {**self._trial.digests(), "errors": digest(self.errors)}

    @override
    def on_validation_start(self) -> None:
        self.enter(Phase.EVALUATION)

    @override
    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        if self._trial.num_batches < self._trial.num_batches_of_run:
            self.errors.append(float(metrics["error"]))
        self.enter(Phase.UPDATED)

    @override
    def on_trial_shutdown(self) -> None:
        self.enter(Phase.END)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"errors": self.errors, "as_trained": self.as_trained}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.errors = list(state_dict["errors"])
        self.as_trained = dict(state_dict["as_trained"])


class Noisy(PyTorchTrial):
    """Two models with an optimizer and a schedule each, and draws from all three random streams in each batch.

    Attributes:
        folder: Where it writes down what it trains on.
        workers: The processes that load data.
        num_batches: How many batches were trained.
        num_batches_of_run: How many there are.
        is_first_batch: Whether the next batch is the first one after a resume.
    """

    def __init__(self, context: PyTorchTrialContext, folder: Path, options: Any, datasets: tuple[Any, Any]) -> None:
        self.context = context
        self.workers: int = options.workers
        self.accumulation: int = options.accumulation
        self.datasets: tuple[Dataset[Any], Dataset[Any]] = datasets
        self.num_batches = 0
        self.num_batches_of_run: int = options.epochs * _batches_of_epoch(datasets[0], context.distributed.size)
        self.is_first_batch = False
        self._lines = os.open(samples_path(folder, rank()), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.body = context.wrap_model(
            nn.Sequential(nn.Linear(FEATURES, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.3))
        )
        self.head = context.wrap_model(nn.Linear(24, CLASSES))
        self.first = context.wrap_optimizer(Adam(self.body.parameters(), lr=0.01))
        self.second = context.wrap_optimizer(SGD(self.head.parameters(), lr=0.05, momentum=0.9))
        mode = LRScheduler.StepMode
        context.wrap_lr_scheduler(CosineAnnealingLR(self.first, 40), mode.STEP_EVERY_OPTIMIZER_STEP)
        context.wrap_lr_scheduler(StepLR(self.second, 2, gamma=0.7), mode.STEP_EVERY_EPOCH)
        self.notes = Notes(self, None)

    @override
    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(self.datasets[0], batch_size=BATCH_SIZE, shuffle=True, num_workers=self.workers)

    @override
    def build_validation_data_loader(self) -> DataLoader:
        return DataLoader(self.datasets[1], batch_size=BATCH_SIZE, num_workers=self.workers)

    @override
    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        return {"notes": self.notes}

    @override
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets, indices, draws = batch
        begins_group = batch_idx % self.accumulation == 0
        self.notes.enter(Phase.FIRST_STEP if self.is_first_batch else Phase.FORWARD if begins_group else Phase.GROUP)
        self.is_first_batch = False
        noise = random.random() + float(np.random.rand()) + float(torch.rand(()))
        loss = self._loss_of(inputs * (1 + 0.1 * noise), targets)
        self.context.backward(loss)
        self.context.step_optimizer(self.first, lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0))
        self.context.step_optimizer(self.second)
        self._write_down(batch_idx, epoch_idx, indices.tolist(), [*draws.tolist(), [noise]])
        self.num_batches = batch_idx + 1
        self.notes.enter(Phase.UPDATED)
        return {"loss": loss}

    @override
    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        inputs, targets, *_ = batch
        return {"error": self._loss_of(inputs + torch.rand(()), targets)}

    def watched_by(self, watching: WatchCallback) -> None:
        """Have the phases noted down."""
        self.notes = Notes(self, watching)

    def digests(self) -> dict[str, str]:
        """Return a digest of each of the things that the trial consists of."""
        context = self.context
        return {
            "weights": digest([model.state_dict() for model in context.models]),
            "optimizers": digest([one.state_dict() for one in context.optimizers]),
            "schedulers": digest([one.state_dict() for one in context.lr_schedulers]),
        }

    def _loss_of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(self.body(inputs)), targets)

    def _write_down(self, batch_idx: int, epoch_idx: int, indices: list[int], draws: list[Any]) -> None:
        line = {
            "attempt": int(os.environ.get("ATTEMPT", "1")),
            "batch": batch_idx + 1,
            "epoch": epoch_idx,
            "update": batch_idx + 1,
            "step": 0,
            "indices": indices,
            "draws": draws,
        }
        os.write(self._lines, (json.dumps(line) + "\n").encode())  # in one piece, however the process ends


def train_trial(options: Any, states: Path, datasets: tuple[Any, Any], watching: WatchCallback | None) -> None:
    """Train, or go on training, as a script does that is started again with the same command line.

    Args:
        options: The arguments of the script.
        states: Where checkpoints are saved.
        datasets: For training and for validation.
        watching: Notes down phases; None where nobody looks.

    Raises:
        SystemExit: A signal asked the process to leave.
    """
    with pa_trial.init(
        checkpoint_dir=states, aggregation_frequency=options.accumulation, max_checkpoints=options.max_states
    ) as context:
        trial = Noisy(context, options.folder, options, datasets)
        if watching is not None:
            trial.watched_by(watching)
        Trainer(trial, context).fit(
            max_length=Epoch(options.epochs),
            checkpoint_period=Batch(options.states_every_n_steps) if options.states_every_n_steps else None,
            validation_period=Epoch(1),
            reporting_period=Batch(7),
            checkpoint_policy="none",
            latest_checkpoint=context.get_latest_checkpoint(),
        )
        if context.get_stop_requested():
            raise SystemExit(STATUS_OF_PREEMPTED)
        is_chief = context.distributed.rank == 0  # whose callbacks are in the checkpoints
        outcome = {
            "as_trained": trial.notes.as_trained if is_chief else {},
            "in_the_end": trial.digests(),
            "updates": options.epochs,
        }
        outcome_path(options.folder, rank()).write_text(json.dumps(outcome))


def _batches_of_epoch(dataset: Any, ranks: int) -> int:
    return math.ceil(math.ceil(len(dataset) / BATCH_SIZE) / ranks)
