"""Schedulers that are told how far the run is, as timm's are."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.optim import Optimizer
from torch.optim.lr_scheduler import StepLR
from typing_extensions import override

from pa_core import ConfigurationError, StopTrainingError, TrainerWithTimmScheduler
from pa_core.testing import make_classification
from tests.support.callbacks import FailAt, RatesUsed
from tests.support.pa_core.own_schedulers import Timm
from tests.support.trainers import classifier_trainer

DATA = make_classification(16)
EVAL_DATA = make_classification(8, seed=1)


class RateIsTime(Timm):
    """A schedule whose rate is the number of epochs, or of updates, that it was told of last."""

    def __init__(self, optimizer: Optimizer, *, in_epochs: bool) -> None:
        super().__init__(optimizer)
        self.group, self.in_epochs = optimizer.param_groups[0], in_epochs
        self.group["lr"] = 0

    @override
    def step(self, epoch: int, metric: float | None = None) -> None:
        self.group["lr"] = epoch if self.in_epochs else self.group["lr"]

    @override
    def step_update(self, num_updates: int, metric: float | None = None) -> None:
        self.group["lr"] = self.group["lr"] if self.in_epochs else num_updates


def told(trainer: TrainerWithTimmScheduler) -> list[Any]:
    """What the scheduler of the run was told: the numbers of updates, and epochs with their metrics."""
    assert isinstance(trainer.scheduler, Timm)
    return trainer.scheduler.told


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_scheduler_is_told_of_each_update_and_each_epoch(accumulation: int) -> None:
    """Updates and epochs are counted over the run, once on any number of processes, and the metric is the loss."""
    trainer = classifier_trainer(TrainerWithTimmScheduler)
    trainer.train(
        DATA,
        3,
        EVAL_DATA,
        per_device_batch_size=2,
        gradient_accumulation_steps=accumulation,
        create_scheduler_fn=Timm,
    )

    updates = 8 // accumulation // trainer.run_config.num_processes
    losses = list(trainer.run_history.get_metric_values("eval_loss_epoch"))
    assert told(trainer) == [
        event
        for epoch in range(3)
        for event in (*range(epoch * updates + 1, (epoch + 1) * updates + 1), (epoch + 1, losses[epoch]))
    ]


def test_without_an_evaluation_there_is_no_metric() -> None:
    """The epochs are told all the same, also after a run that had evaluated."""
    trainer = classifier_trainer(TrainerWithTimmScheduler)
    trainer.train(DATA, 1, EVAL_DATA, create_scheduler_fn=Timm)
    trainer.train(DATA, 2, per_device_batch_size=16, create_scheduler_fn=Timm, reset_run_history=False)
    assert told(trainer) == [1, (1, None), 2, (2, None)]


@pytest.mark.parametrize("in_epochs", [True, False])
def test_each_update_is_made_with_the_rate_of_the_updates_before_it(in_epochs: bool) -> None:
    """The first update has the rate at 0, and a schedule over epochs changes between them only."""
    rates = RatesUsed()
    trainer = classifier_trainer(TrainerWithTimmScheduler, rates)
    trainer.train(DATA, 3, per_device_batch_size=8, create_scheduler_fn=partial(RateIsTime, in_epochs=in_epochs))
    assert rates.rates == ([0, 0, 1, 1, 2, 2] if in_epochs else [0, 1, 2, 3, 4, 5])
    assert trainer.optimizer.param_groups[0]["lr"] == (3 if in_epochs else 6)


def test_a_run_that_ends_in_mid_epoch_is_told_as_far_as_it_went() -> None:
    """A number of updates closes its last epoch; a stop does not."""
    trainer = classifier_trainer(TrainerWithTimmScheduler)
    trainer.train(DATA, 9, per_device_batch_size=4, max_num_train_steps=6, create_scheduler_fn=Timm)
    assert told(trainer)[-3:] == [5, 6, (2, None)]

    trainer = classifier_trainer(
        TrainerWithTimmScheduler, FailAt("on_optimizer_step_end", StopTrainingError(), update=6)
    )
    trainer.train(DATA, 9, per_device_batch_size=4, create_scheduler_fn=Timm)
    assert told(trainer)[-3:] == [(1, None), 5, 6]


def test_the_state_of_the_scheduler_is_part_of_a_checkpoint(tmp_path: Path) -> None:
    """It is saved and loaded as that of any other scheduler."""
    saved = classifier_trainer(TrainerWithTimmScheduler)
    saved.train(DATA, 2, create_scheduler_fn=Timm)
    saved.save_checkpoint(tmp_path / "checkpoint.pt")
    other = classifier_trainer(TrainerWithTimmScheduler)
    other.train(DATA, 1, create_scheduler_fn=Timm)

    other.load_checkpoint(tmp_path / "checkpoint.pt")

    assert told(other) == told(saved) != []


class StepsWithoutEpochs(StepLR):
    """Has ``step_update`` beside a ``step`` without a metric, as schedulers of pa-schedulers do."""

    def step_update(self, num_updates: int) -> None:
        """Set the value for a number of updates."""


@pytest.mark.parametrize("kind", [StepLR, StepsWithoutEpochs])
def test_a_scheduler_of_another_kind_is_refused_before_anything_is_trained(kind: Any) -> None:
    """Those of torch and of pa-schedulers are for ``Trainer``, and the error says so."""
    trainer = classifier_trainer(TrainerWithTimmScheduler)
    with pytest.raises(ConfigurationError, match=r"(?s)as timm's have.*Use Trainer"):
        trainer.train(DATA, 1, create_scheduler_fn=partial(kind, step_size=1))

    assert trainer.num_updates_completed == 0


def test_a_factory_that_returns_more_than_the_scheduler_is_refused() -> None:
    """As timm's ``create_scheduler_v2`` does, which returns the number of epochs as well."""

    def factory(optimizer: Optimizer) -> Any:
        return Timm(optimizer), 4

    with pytest.raises(TypeError, match=r"returned a tuple\..*\[0\]"):
        classifier_trainer(TrainerWithTimmScheduler).train(DATA, 1, create_scheduler_fn=factory)
