"""Callbacks that note what a run does."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from pa_core import AnyTrainer, TrainerCallback


class RatesUsed(TrainerCallback):
    """Notes the learning rate that each update is made with."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self.rates.append(trainer.optimizer.param_groups[0]["lr"])
