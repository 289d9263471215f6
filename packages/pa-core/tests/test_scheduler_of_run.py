"""Where the scheduler of a run comes from: a factory, an assignment, the run before, or an override."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR, OneCycleLR
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import (
    CheckpointError,
    ConfigurationError,
    SaveTrainingStateCallback,
    StopTrainingError,
    Trainer,
    TrainerCallback,
)
from pa_core.types import SchedulerLike
from tests.support.callbacks import FailAt, KillAt, KilledError, RatesUsed
from tests.support.models import weights_of

HALVING = partial(ExponentialLR, gamma=0.5)


def samples(number: int = 4) -> TensorDataset:
    """Points on a line."""
    inputs = torch.linspace(-1, 1, number)[:, None]
    return TensorDataset(inputs, inputs * 2)


def make_trainer(*callbacks: TrainerCallback, trainer_class: type[Trainer] = Trainer, lr: float = 1.0) -> Trainer:
    """A trainer of one weight, with one sample in a batch where `train` is used."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    return trainer_class(model, nn.MSELoss(), SGD(model.parameters(), lr=lr), callbacks=callbacks)


def train(trainer: Trainer, updates: int = 4, **options: Any) -> None:
    """Train for so many updates."""
    trainer.train(samples(updates), num_epochs=1, per_device_batch_size=1, **options)


def test_an_assigned_scheduler_is_that_of_the_run() -> None:
    """``trainer.scheduler = ...`` before a run without a factory: it is stepped after each update."""
    used = RatesUsed()
    trainer = make_trainer(used)
    trainer.scheduler = assigned = HALVING(trainer.optimizer)

    train(trainer)

    assert trainer.scheduler is assigned
    assert used.rates == [1.0, 0.5, 0.25, 0.125]


def test_a_run_without_a_factory_keeps_the_scheduler_of_the_run_before() -> None:
    """The second run goes on where the schedule of the first one stopped, also with an evaluation between them."""
    used = RatesUsed()
    trainer = make_trainer(used)
    train(trainer, 2, create_scheduler_fn=HALVING)
    trainer.evaluate(samples())
    train(trainer, 2)

    assert used.rates == [1.0, 0.5, 0.25, 0.125]


def test_a_factory_makes_a_new_scheduler() -> None:
    """A factory replaces what was assigned or kept, and None assigned leaves a run without one."""
    trainer = make_trainer()
    trainer.scheduler = assigned = HALVING(trainer.optimizer)
    train(trainer, create_scheduler_fn=partial(CosineAnnealingLR, T_max=4))
    made = trainer.scheduler
    assert made is not assigned

    trainer.scheduler = None
    used = RatesUsed()
    trainer.callback_handler.add_callback(used)
    train(trainer)
    assert trainer.scheduler is None
    assert len(set(used.rates)) == 1


def test_an_override_that_needs_no_factory_makes_the_scheduler_of_each_run() -> None:
    """It is called for each run without a factory, unless a scheduler was assigned since."""

    class Halves(Trainer):
        @override
        def create_scheduler(self) -> SchedulerLike:
            return ExponentialLR(self.optimizer, gamma=0.5)

    trainer = make_trainer(trainer_class=Halves)
    train(trainer)
    first = trainer.scheduler
    train(trainer)
    assert isinstance(first, ExponentialLR)
    assert trainer.scheduler is not first

    trainer.scheduler = assigned = HALVING(trainer.optimizer)
    train(trainer)
    assert trainer.scheduler is assigned


def test_a_scheduler_of_another_optimizer_is_refused() -> None:
    """Assigned, or kept after the optimizer was replaced, it would change the rates of one that is not used."""
    trainer = make_trainer()
    weight = weights_of(trainer.get_model())
    other = SGD(trainer.model.parameters(), lr=1.0)

    trainer.scheduler = HALVING(other)
    with pytest.raises(ConfigurationError, match="another optimizer"):
        train(trainer)
    train(trainer, create_scheduler_fn=HALVING)
    trained = weights_of(trainer.get_model())
    trainer.optimizer = other
    with pytest.raises(ConfigurationError, match=r"trainer.scheduler = None"):
        train(trainer)

    assert not torch.equal(weight, trained)
    assert torch.equal(weights_of(trainer.get_model()), trained)


def test_a_scheduler_made_before_a_group_was_added_is_refused() -> None:
    """It has no rate for the new group, and would fail after the first update."""
    trainer = make_trainer()
    trainer.scheduler = HALVING(trainer.optimizer)
    trainer.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 0.1})

    with pytest.raises(ConfigurationError, match=r"(?s)1 group.*2 group"):
        train(trainer)


def test_a_schedule_that_is_too_short_is_refused_before_the_first_update() -> None:
    """Torch's one-cycle schedule ends with an error, and is kept from run to run; what was recorded is still there."""
    trainer = make_trainer()
    train(trainer, create_scheduler_fn=partial(OneCycleLR, max_lr=1.0, total_steps=4))
    trained = weights_of(trainer.get_model())

    losses, epoch = trainer.run_history.get_metric_values("train_loss_epoch"), trainer.run_history.current_epoch

    with pytest.raises(ConfigurationError, match=r"shorter than the run.*OneCycleLR of 4 updates, 4 of which are done"):
        train(trainer)
    assert torch.equal(weights_of(trainer.get_model()), trained)
    assert trainer.run_history.get_metric_values("train_loss_epoch") == losses
    assert trainer.run_history.current_epoch == epoch


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("create", [HALVING, partial(LambdaLR, lr_lambda=lambda step: 1 / (1 + step))])
def test_an_assigned_scheduler_is_saved_and_resumed(tmp_path: Path, create: Any, is_new: bool) -> None:
    """With the rates of the uninterrupted run, in a script that assigns it again and in the same trainer."""

    def start(*callbacks: TrainerCallback) -> Trainer:
        trainer = make_trainer(*callbacks)
        trainer.scheduler = create(trainer.optimizer)
        return trainer

    uninterrupted, resumed = RatesUsed(), RatesUsed()
    train(start(uninterrupted), 6)
    save, kill = SaveTrainingStateCallback(tmp_path, save_every_n_steps=2), KillAt(3)
    trainer = start(save, kill)
    with pytest.raises(KilledError):
        train(trainer, 6)
    for callback in (save, kill):
        trainer.callback_handler.remove_callback(callback)
    trainer = start() if is_new else trainer
    trainer.callback_handler.add_callback(resumed)
    train(trainer, 6, resume_from=tmp_path)
    assert len(set(uninterrupted.rates)) == 6
    assert resumed.rates == uninterrupted.rates[2:]


def test_stopping_by_intent_leaves_the_scheduler_for_the_next_run() -> None:
    """A run that a callback stops keeps its scheduler like any other."""
    used = RatesUsed()
    trainer = make_trainer(used, FailAt("on_optimizer_step_end", StopTrainingError("enough")))
    train(trainer, create_scheduler_fn=HALVING)
    train(trainer)
    train(trainer)
    assert used.rates == [1.0, 0.5, 0.25]


def test_a_state_that_the_run_cannot_go_on_with_costs_nothing_that_was_recorded(tmp_path: Path) -> None:
    """A resumed run that is refused leaves the metrics of the run before."""
    trainer = make_trainer()
    train(trainer)
    trainer.save_training_state(tmp_path / "state")
    losses = trainer.run_history.get_metric_values("train_loss_epoch")
    with pytest.raises(CheckpointError, match="would not continue"):
        train(trainer, updates=8, resume_from=tmp_path / "state")
    assert trainer.run_history.get_metric_values("train_loss_epoch") == losses
