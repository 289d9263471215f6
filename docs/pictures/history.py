"""The history of a run: losses and accuracy, as `plot_run_history` draws them."""

from __future__ import annotations

from pathlib import Path

from docs.pictures.digits import EPOCHS, digits, digits_trainer
from pa_core import plot_run_history

__all__ = ["draw"]


def draw(light: Path, dark: Path) -> None:
    """Train, and draw what was recorded."""
    train_dataset, eval_dataset = digits()
    trainer = digits_trainer()
    trainer.train(train_dataset, num_epochs=EPOCHS, eval_dataset=eval_dataset, per_device_batch_size=32)
    plot_run_history(trainer.run_history, light)
    plot_run_history(trainer.run_history, dark, dark=True)
