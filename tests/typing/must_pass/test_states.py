"""The types of saving a run and going on with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

from torch import nn

from pa_core import (
    AnyTrainer,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    SupportsStateDict,
    Trainer,
    TrainerCallback,
)
from tests.typing.vocabulary import Net, make_data, make_optimizer


class CountEpochs(TrainerCallback):
    """A callback with a state."""

    def __init__(self) -> None:
        self.epochs = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the count."""
        return {"epochs": self.epochs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        self.epochs = state_dict["epochs"]


def trainer_with(*callbacks: TrainerCallback) -> Trainer[Net]:
    """Return a trainer of ``Net``."""
    net = Net()
    return Trainer(net, nn.CrossEntropyLoss(), make_optimizer(net), callbacks=callbacks)


def test_a_run_goes_on_from_a_path_of_either_kind(tmp_path: Path) -> None:
    """A folder is named by a string or by a path, and the differences that are allowed by their names."""
    save = SaveTrainingStateCallback(tmp_path, save_every_n_epochs=1, stop_on_signals=("SIGUSR1", 10))
    assert_type(save.save_dir, Path)
    trainer_with(save).train(make_data(), num_epochs=1, resume_from=tmp_path, resume_missing="start")

    trainer = trainer_with(SaveTrainingStateCallback(str(tmp_path), max_checkpoints=1))
    trainer.train(make_data(), num_epochs=2, resume_from=str(tmp_path), resume_allow={"loader", "scheduler"})

    assert trainer.num_epochs_completed == 2


def test_a_state_brings_back_what_was_saved_along(tmp_path: Path) -> None:
    """Extras come back as a dictionary; what has a state is registered without a base class."""
    trainer = trainer_with(CountEpochs())
    count: SupportsStateDict = CountEpochs()
    trainer.register_for_checkpointing(count, nn.Linear(1, 1))
    trainer.train(make_data(), num_epochs=1)
    saved: list[Path] = []
    trainer.save_training_state(tmp_path / "state", {"note": "first"}, on_saved=saved.append)

    assert_type(trainer.load_training_state(tmp_path / "state"), dict[str, Any])
    assert saved == [tmp_path / "state"]


def test_the_best_model_is_saved_under_a_metric(tmp_path: Path) -> None:
    """The best value is known as a number once there is one."""
    best = SaveBestModelCallback(tmp_path / "best.pt", watch_metric="train_loss_epoch", save_optimizer=False)

    def save(trainer: AnyTrainer) -> None:
        best.save_best(trainer)

    trainer = trainer_with(best)
    trainer.train(make_data(), num_epochs=1)
    save(trainer)
    assert_type(best.best.value, float | None)
    assert best.best.value is not None
