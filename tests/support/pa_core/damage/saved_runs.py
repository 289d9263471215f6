"""A run with two states, to be damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pa_checkpoint import Folder
from pa_core import SaveTrainingStateCallback, Trainer, TrainerCallback
from tests.support.pa_core.training_states.small_runs import InterruptAt, Interrupted, make_trainer, train

EPOCHS = 2


class Meter:
    """An object that is registered to be saved with the run."""

    def __init__(self) -> None:
        self.value = 3

    def state_dict(self) -> dict[str, int]:
        """The value."""
        return {"value": self.value}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Take it over."""
        self.value = int(state_dict["value"])


def make(*callbacks: TrainerCallback) -> Trainer:
    """A trainer as a script makes it at each start, with everything that a state can hold."""
    trainer = make_trainer(*callbacks)
    trainer.register_for_checkpointing(Meter())
    return trainer


class SavedRuns(NamedTuple):
    """Two states of one run, and what it comes to when nothing interrupts it."""

    folder: Path
    newest: Path
    expected: dict[str, Any]

    def damaged(self, folder: Path, damage: Callable[[Path], object]) -> Path:
        """A copy of the folder whose newest state is damaged."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder, folder)
        damage(folder / self.newest.name)
        return folder


def save_runs(folder: Path) -> SavedRuns:
    """States after the updates 5 and 10 of a run of 14."""
    saving = SaveTrainingStateCallback(folder, save_every_n_steps=5)
    with pytest.raises(Interrupted):
        train(make(saving, InterruptAt("on_train_step_end", 11)), EPOCHS)
    return SavedRuns(folder, Folder(folder).records()[-1].path, train(make(), EPOCHS))


def restored(trainer: Trainer) -> tuple[object, ...]:
    """What a resumed run restores before its first event; a scheduler changes the groups when it is made."""
    model = {name: str(value) for name, value in trainer.model.state_dict().items()}
    return model, str(trainer.optimizer.state_dict()["state"]), list(trainer.run_history.get_metric_names())
