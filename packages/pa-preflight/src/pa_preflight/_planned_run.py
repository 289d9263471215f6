"""What a run is going to do, noted where its first updates are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from pa_core import AnyTrainer, Trainer, TrainerCallback
from pa_preflight._arguments import is_trainer
from pa_preflight._plan_events import epochs_of
from pa_preflight._plan_rates import rates_of
from pa_preflight._plan_records import PlannedRates


class PlannedRun(TrainerCallback):
    """Notes how many updates a run has, and the learning rate of each.

    Args:
        trainer: The trainer, before the run.
        asked: The arguments of the run.

    Attributes:
        first_rates: The learning rates that the optimizers have without a scheduler: of each group, by the name of the
            optimizer and the number of the group.
        updates: The number of updates; 0 where it is not known.
        epochs: The number of epochs.
        schedulers: The schedulers, by name.
        scheduler_steps: How often they are stepped.
        rates: The course of the rate of each group; none where it follows from a metric or is set by the script.
    """

    def __init__(self, trainer: Trainer[Any, Any, Any, Any], asked: Mapping[str, Any]) -> None:
        self._asked = asked
        self.first_rates: dict[tuple[str, int], float] = {
            (name, number): float(group["lr"])
            for name, one in trainer.named_optimizers().items()
            for number, group in enumerate(one.param_groups)
        }
        self.updates = self.epochs = self.scheduler_steps = 0
        self.schedulers: dict[str, Any] = {}
        self.rates: list[PlannedRates] = []
        self._is_known = False

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        if self._is_known or not trainer.epoch_lengths.are_known:
            return
        self._is_known = True
        epochs = list(epochs_of(trainer))
        self.updates, self.epochs = epochs[-1].ends_at, len(epochs)
        self.schedulers = dict(trainer.named_schedulers())
        is_by_update = self._asked["step_scheduler"] == "update"
        steps_after = range(1, self.updates) if is_by_update else {one.ends_at for one in epochs}
        self.scheduler_steps = len(steps_after)
        is_own = is_trainer(trainer) and type(trainer).scheduler_step is not Trainer.scheduler_step
        if self.schedulers and (is_own or self._asked["watch_metric"] is not None):
            return
        try:
            self.rates = rates_of(trainer.named_optimizers(), self.schedulers, self.updates, steps_after)
        except Exception:  # as of a scheduler that cannot be copied
            self.rates = []
