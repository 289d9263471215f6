"""Loops of one's own over small data, as scripts write them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from pa_core import Run, TrainerCallback
from pa_core.custom_loop import Update
from tests.small_runs import linear, samples
from tests.support.callbacks import KilledError
from tests.support.histories import moments
from tests.support.pa_core.training_states.small_runs import DrawingDataset, DropoutNetwork, SampleLog, cosine

Batch = tuple[Tensor, Tensor]
SAMPLES, BATCH_SIZE = 52, 8  # 7 batches, the last one of 4
NO_WORKERS = {"num_workers": 0}  # starting them takes longer than such a run


def seed_all(seed: int) -> None:
    """Seed what a run draws from."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def make_run(*callbacks: TrainerCallback, seed: int = 1, **options: Any) -> Run[DropoutNetwork, Batch]:
    """A run as a script makes it at each start."""
    seed_all(seed)
    model = DropoutNetwork()
    settings: dict[str, Any] = {
        "num_epochs": 3,
        "per_device_batch_size": BATCH_SIZE,
        "gradient_accumulation_steps": 2,
        "create_scheduler_fn": cosine,
        "train_dataloader_kwargs": NO_WORKERS,
        **options,
    }
    return Run(
        model,
        Adam(model.parameters(), lr=0.01),
        DrawingDataset(SAMPLES),
        callbacks=[SampleLog(), *callbacks],
        **settings,
    )


def train(run: Run[DropoutNetwork, Batch], *, dies_at: int | None = None) -> None:
    """A loop over epochs, updates and batches with an evaluation after each epoch and now and then within it.

    Args:
        run: The run.
        dies_at: After which update the loop fails.
    """
    with run:
        for _ in run.epochs():
            run.model.train()
            for update in run.updates():
                for inputs, targets in update:
                    noise = 1 + 0.1 * random.random()
                    logits = run.model(inputs * noise)
                    run.log("share", (logits.argmax(1) == targets).float().mean())
                    update.backward(nn.functional.cross_entropy(logits, targets))
                update.step()
                if update.number == dies_at:
                    raise KilledError
                if update.number % 3 == 0:
                    evaluate(run, "mid")
            evaluate(run, "eval")


def evaluate(run: Run[DropoutNetwork, Batch], name: str) -> None:
    """Measure the loss and the accuracy over 20 samples."""
    for inputs, targets in run.evaluation_batches(DrawingDataset(20), name=name, dataloader_kwargs=NO_WORKERS):
        logits = run.model(inputs)
        run.log("loss", nn.functional.cross_entropy(logits, targets))
        run.log("accuracy", (logits.argmax(1) == targets).float().mean())


def fingerprint(run: Run[Any, Any]) -> dict[str, Any]:
    """What a run has left behind."""
    log = next(one for one in run.callback_handler.callbacks if isinstance(one, SampleLog))
    return {
        "weights": [value.tolist() for value in run.get_model().state_dict().values()],
        "optimizer": str(run.optimizer.state_dict()),
        "scheduler": None if run.scheduler is None else run.scheduler.state_dict(),
        "history": moments(run),
        "samples": log.steps,
        "updates": run.num_updates_completed,
        "streams": (torch.get_rng_state().tolist(), random.getstate(), cast("Any", np.random.get_state())[1].tolist()),
    }


def states_in(folder: Path) -> list[str]:
    """The names of the training states in a folder."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def make_line(number: int = 10, lr: float = 0.1, data: Any = None, **options: Any) -> Run[nn.Linear, list[Tensor]]:
    """A linear model over ten samples, or other data, in double precision."""
    model = linear()
    settings: dict[str, Any] = {"num_epochs": 1, "per_device_batch_size": 4, **options}
    return Run(model, SGD(model.parameters(), lr=lr), samples(number) if data is None else data, **settings)


def step_through(run: Run[nn.Linear, list[Tensor]]) -> None:
    """Train the run to its end."""
    for inputs, targets in run.batches():
        run.backward((run.model(inputs * 0.1) - targets).square().mean())
        run.step()


def make_update(run: Run[nn.Linear, Any], update: Update[list[Tensor]]) -> None:
    """Train on the batches of an update."""
    for inputs, targets in update:
        update.backward((run.model(inputs * 0.1) - targets).square().mean())
    update.step()
