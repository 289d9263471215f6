"""A search for a learning rate, as `LearningRateCurve.plot` draws it."""

from __future__ import annotations

from pathlib import Path

from docs.pictures.digits import digits, digits_trainer
from pa_schedulers import find_learning_rate

__all__ = ["draw"]


def draw(light: Path, dark: Path) -> None:
    """Search once, and draw the losses."""
    train_dataset, _ = digits()
    found = find_learning_rate(digits_trainer(), train_dataset, per_device_batch_size=32)
    found.plot(light)
    found.plot(dark, dark=True)
