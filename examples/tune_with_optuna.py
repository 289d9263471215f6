"""Search hyperparameters with Optuna, and prune unpromising trials.

A callback reports each evaluation loss to the trial, and raises `StopTrainingError` if most others were better by then.
Optuna knows nothing of several processes: the first one has the study, and the others get its settings. Where only the
first one raises `StopTrainingError`, the run ends on all of them, after the same update.

    python examples/tune_with_optuna.py
    torchrun --nproc-per-node 2 examples/tune_with_optuna.py
    accelerate launch --mixed_precision bf16 examples/tune_with_optuna.py

The last lines that it prints:

    Of 12 trials, 7 were pruned.
    The lowest loss is 0.1173: learning_rate=0.0143, width=128, dropout=0.05
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import optuna
import torch
from optuna.trial import TrialState
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset, random_split

from pa_core import (
    DEFAULT_CALLBACKS,
    AnyTrainer,
    StopTrainingError,
    Trainer,
    TrainerCallback,
    gather_objects,
    world_process_zero_only,
)


@dataclass(frozen=True)
class Settings:
    """What is looked for."""

    learning_rate: float
    width: int
    dropout: float

    @classmethod
    def suggested_by(cls, trial: optuna.Trial) -> Settings:
        """Return the settings that a trial is to try out."""
        return cls(
            learning_rate=trial.suggest_float("learning_rate", 1e-4, 1.0, log=True),
            width=trial.suggest_categorical("width", [32, 64, 128]),
            dropout=trial.suggest_float("dropout", 0.0, 0.5, step=0.05),
        )


class PruneCallback(TrainerCallback):
    """Reports the evaluation loss of each epoch to a trial, and ends the run if Optuna prunes the trial."""

    def __init__(self, trial: optuna.Trial | None) -> None:
        self.trial = trial
        self.is_pruned = False

    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        if self.trial is not None:
            loss = float(trainer.run_history.get_latest_metric("eval_loss_epoch"))
            self.trial.report(loss, step=trainer.run_history.current_epoch)
            if self.trial.should_prune():
                self.is_pruned = True
                raise StopTrainingError("the trial is pruned")


def train(settings: Settings, prune: PruneCallback, epochs: int) -> float:
    """Train on scanned digits with these settings, and return the evaluation loss of the last epoch."""
    torch.manual_seed(0)
    data, target = load_digits(return_X_y=True)
    dataset = TensorDataset(torch.tensor(data, dtype=torch.float32) / 16, torch.tensor(target))
    train_dataset, eval_dataset = random_split(dataset, [1200, 597], generator=torch.Generator().manual_seed(0))
    hidden = nn.Linear(64, settings.width), nn.ReLU(), nn.Dropout(settings.dropout)
    model = nn.Sequential(*hidden, nn.Linear(settings.width, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[*DEFAULT_CALLBACKS, prune])
    trainer.train(train_dataset, epochs, eval_dataset, per_device_batch_size=32)
    return float(trainer.run_history.get_latest_metric("eval_loss_epoch"))


@world_process_zero_only
def create_study() -> optuna.Study:
    """Create a study, the same one each time."""
    pruner = optuna.pruners.MedianPruner(n_startup_trials=3)
    return optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0), pruner=pruner)


def main(epochs: int = 6, trials: int = 12) -> None:
    """Try out settings, and print the best ones."""
    study = create_study()  # None on all processes but the first
    for _ in range(trials):
        trial = None if study is None else study.ask()
        settings = gather_objects(None if trial is None else Settings.suggested_by(trial))[0]
        assert settings is not None
        prune = PruneCallback(trial)
        loss = train(settings, prune, epochs)
        if study is not None and trial is not None:
            study.tell(trial, None if prune.is_pruned else loss, TrialState.PRUNED if prune.is_pruned else None)
    if study is not None:
        pruned = study.get_trials(states=[TrialState.PRUNED])
        best = ", ".join(f"{name}={value:.3g}" for name, value in study.best_params.items())
        print(f"Of {trials} trials, {len(pruned)} were pruned.")
        print(f"The lowest loss is {study.best_value:.4f}: {best}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Look for good settings with Optuna.")
    parser.add_argument("--epochs", type=int, default=6, help="how many epochs a trial has")
    parser.add_argument("--trials", type=int, default=12, help="how many settings to try out")
    main(**vars(parser.parse_args()))
