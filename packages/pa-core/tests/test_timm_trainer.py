"""Schedulers that are told how far the run is, as timm's are."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import StepLR

from pa_core import ConfigurationError, StopTrainingError, TrainerCallback, TrainerWithTimmScheduler
from pa_core.testing import TinyClassifier, make_classification
from tests.support.callbacks import FailAt, RatesUsed

DATA = make_classification(16)
EVAL_DATA = make_classification(8, seed=1)


class CosineWithWarmup:
    """A schedule with timm's interface: it counts nothing, but computes from what it is told."""

    def __init__(
        self, optimizer: Optimizer, t_initial: int = 4, warmup_t: int = 2, *, t_in_epochs: bool = True
    ) -> None:
        self.optimizer = optimizer
        self.t_initial, self.warmup_t, self.t_in_epochs = t_initial, warmup_t, t_in_epochs
        self.base_values = [group.setdefault("initial_lr", group["lr"]) for group in optimizer.param_groups]
        self.told: list[tuple[Any, ...]] = []
        self.set(0)

    def set(self, t: float) -> None:
        """Set the rate of each group for the time t."""
        for group, base in zip(self.optimizer.param_groups, self.base_values, strict=True):
            group["lr"] = base * self.factor(t)

    def factor(self, t: float) -> float:
        """The part of the base rate at the time t."""
        if t < self.warmup_t:
            return (t + 1) / (self.warmup_t + 1)
        return 0.5 * (1 + math.cos(math.pi * min(t, self.t_initial) / self.t_initial))

    def step(self, epoch: int, metric: float | None = None) -> None:
        """Be told of the end of an epoch."""
        self.told.append(("epoch", epoch, metric))
        if self.t_in_epochs:
            self.set(epoch)

    def step_update(self, num_updates: int, metric: float | None = None) -> None:
        """Be told of an update."""
        self.told.append(("update", num_updates))
        if not self.t_in_epochs:
            self.set(num_updates)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer."""
        return {key: value for key, value in vars(self).items() if key != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state."""
        vars(self).update(state_dict)


def make_trainer(*callbacks: TrainerCallback) -> TrainerWithTimmScheduler[TinyClassifier]:
    """A trainer with a base rate of one, so that a rate is a factor."""
    torch.manual_seed(0)
    model = TinyClassifier()
    optimizer = SGD(model.parameters(), lr=1.0)
    return TrainerWithTimmScheduler(model, nn.CrossEntropyLoss(), optimizer, callbacks=callbacks)


def told(trainer: TrainerWithTimmScheduler[TinyClassifier]) -> list[tuple[Any, ...]]:
    """What the scheduler of the run was told."""
    assert isinstance(trainer.scheduler, CosineWithWarmup)
    return trainer.scheduler.told


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_scheduler_is_told_of_each_update_and_each_epoch(accumulation: int) -> None:
    """Updates and epochs are counted over the run, once on any number of processes, and the metric is the loss."""
    trainer = make_trainer()
    trainer.train(
        DATA,
        3,
        EVAL_DATA,
        per_device_batch_size=2,
        gradient_accumulation_steps=accumulation,
        create_scheduler_fn=CosineWithWarmup,
    )

    updates = 8 // accumulation // trainer.run_config.num_processes
    losses = list(trainer.run_history.get_metric_values("eval_loss_epoch"))
    assert told(trainer) == [
        event
        for epoch in range(3)
        for event in (
            *(("update", epoch * updates + update + 1) for update in range(updates)),
            ("epoch", epoch + 1, losses[epoch]),
        )
    ]


def test_without_an_evaluation_there_is_no_metric() -> None:
    """The epochs are told all the same, also after a run that had evaluated."""
    trainer = make_trainer()
    trainer.train(DATA, 1, EVAL_DATA, create_scheduler_fn=CosineWithWarmup)
    trainer.train(DATA, 2, per_device_batch_size=16, create_scheduler_fn=CosineWithWarmup, reset_run_history=False)
    assert told(trainer) == [("update", 1), ("epoch", 1, None), ("update", 2), ("epoch", 2, None)]


@pytest.mark.parametrize("in_epochs", [True, False])
def test_each_update_is_made_with_the_rate_of_the_updates_before_it(in_epochs: bool) -> None:
    """The first update has the rate at 0, and a schedule over epochs changes between them only."""
    rates = RatesUsed()
    trainer = make_trainer(rates)
    trainer.train(
        DATA,
        3,
        per_device_batch_size=8,
        create_scheduler_fn=partial(CosineWithWarmup, t_initial=6, t_in_epochs=in_epochs),
    )
    schedule = CosineWithWarmup(SGD([nn.Parameter(torch.zeros(1))], lr=1.0), t_initial=6)
    times = [0, 0, 1, 1, 2, 2] if in_epochs else range(6)
    assert rates.rates == [schedule.factor(t) for t in times]
    assert trainer.optimizer.param_groups[0]["lr"] == schedule.factor(3 if in_epochs else 6)


def test_a_run_that_ends_in_mid_epoch_is_told_as_far_as_it_went() -> None:
    """A number of updates closes its last epoch; a stop does not."""
    trainer = make_trainer()
    trainer.train(DATA, 9, per_device_batch_size=4, max_num_train_steps=6, create_scheduler_fn=CosineWithWarmup)
    assert told(trainer)[-3:] == [("update", 5), ("update", 6), ("epoch", 2, None)]

    trainer = make_trainer(FailAt("on_optimizer_step_end", StopTrainingError(), update=6))
    trainer.train(DATA, 9, per_device_batch_size=4, create_scheduler_fn=CosineWithWarmup)
    assert told(trainer)[-3:] == [("epoch", 1, None), ("update", 5), ("update", 6)]


def test_the_state_of_the_scheduler_is_part_of_a_checkpoint(tmp_path: Path) -> None:
    """It is saved and loaded as that of any other scheduler."""
    saved = make_trainer()
    saved.train(DATA, 2, create_scheduler_fn=partial(CosineWithWarmup, t_initial=5))
    saved.save_checkpoint(tmp_path / "checkpoint.pt")
    other = make_trainer()
    other.train(DATA, 1, create_scheduler_fn=CosineWithWarmup)

    other.load_checkpoint(tmp_path / "checkpoint.pt")

    assert isinstance(other.scheduler, CosineWithWarmup)
    assert other.scheduler.t_initial == 5
    assert told(other) == told(saved)
    assert other.optimizer.param_groups[0]["lr"] == saved.optimizer.param_groups[0]["lr"]


class StepsWithoutEpochs(StepLR):
    """Has ``step_update`` beside a ``step`` without a metric, as schedulers of pa-schedulers do."""

    def step_update(self, num_updates: int) -> None:
        """Set the value for a number of updates."""


@pytest.mark.parametrize("kind", [StepLR, StepsWithoutEpochs])
def test_a_scheduler_of_another_kind_is_refused_before_anything_is_trained(kind: Any) -> None:
    """Those of torch and of pa-schedulers are for ``Trainer``, and the error says so."""
    model = TinyClassifier()
    trainer = TrainerWithTimmScheduler(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=[])

    with pytest.raises(ConfigurationError, match=r"(?s)as timm's have.*Use Trainer"):
        trainer.train(DATA, 1, create_scheduler_fn=partial(kind, step_size=1))

    assert trainer.num_updates_completed == 0


def test_a_factory_that_returns_more_than_the_scheduler_is_refused() -> None:
    """As timm's ``create_scheduler_v2`` does, which returns the number of epochs as well."""
    model = TinyClassifier()
    trainer = TrainerWithTimmScheduler(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=[])

    def factory(optimizer: Optimizer) -> Any:
        return CosineWithWarmup(optimizer), 4

    with pytest.raises(TypeError, match=r"returned a tuple\..*\[0\]"):
        trainer.train(DATA, 1, create_scheduler_fn=factory)

    trainer.train(DATA, 1, create_scheduler_fn=lambda optimizer: factory(optimizer)[0])
