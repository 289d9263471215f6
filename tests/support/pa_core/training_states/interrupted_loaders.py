"""Runs with loaders of the user's own, and interruptions of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from torch.utils.data import DataLoader

from pa_core import SaveTrainingStateCallback, Trainer, TrainerCallback
from tests.support.pa_core.training_states.own_loaders import BATCH_SIZE, SAMPLES
from tests.support.pa_core.training_states.small_runs import (
    DrawingDataset,
    InterruptAt,
    Interrupted,
    log_of,
    make_trainer,
    train,
)

MakeLoader = Callable[[], Any]


class Result(NamedTuple):
    """What a run came to."""

    fingerprint: dict[str, Any]
    order: list[int]
    draws: list[float]


def run(
    make: MakeLoader, *callbacks: TrainerCallback, make_evaluation: MakeLoader | None = None, **options: Any
) -> Result:
    """Train with a new loader, as a script does in a new process."""
    trainer = make_trainer(*callbacks, seed=options.pop("seed", 1))
    loaders = [make()] if make_evaluation is None else [make(), make_evaluation()]
    vars(trainer)["create_train_dataloader"] = returning(loaders[0])
    if make_evaluation is not None:
        vars(trainer)["create_eval_dataloader"] = returning(loaders[1])
    settings: dict[str, Any] = {"per_device_batch_size": BATCH_SIZE, "eval_dataloader_kwargs": {"num_workers": 0}}
    try:
        fingerprint = train(trainer, dataset=DrawingDataset(SAMPLES), **settings, **options)
    finally:
        end_workers(trainer, loaders)
    steps = log_of(trainer).steps
    return Result(fingerprint, log_of(trainer).indices, [row[1] for step in steps for row in step])


def returning(one: object) -> Callable[[int, Any], object]:
    """An override that creates nothing."""

    def create(batch_size: int, kwargs: Any) -> object:
        return one

    return create


def end_workers(trainer: Trainer, loaders: list[Any]) -> None:
    """Each of those that a later collection of garbage ends would be waited for, for five seconds."""
    for one in (*loaders, getattr(trainer.train_dataloader, "base_dataloader", None)):
        if isinstance(one, DataLoader):
            vars(one)["_iterator"] = None


def interrupt(
    folder: Path, make: MakeLoader, place: tuple[str, int], *callbacks: TrainerCallback, **options: Any
) -> None:
    """Run until a process would have been killed, with states in the folder."""
    every: int = options.pop("every", 4)
    states = SaveTrainingStateCallback(folder, save_every_n_steps=every, save_every_n_epochs=1)
    with pytest.raises(Interrupted):
        run(make, *callbacks, states, InterruptAt(*place), **options)
