"""Where the scheduler of a run comes from, when it is stepped, and with what; those of timm are told how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR
from typing_extensions import override

from pa_core import (
    CheckpointError,
    ConfigurationError,
    MetricNotFoundError,
    SaveTrainingStateCallback,
    StopTrainingError,
    Trainer,
    TrainerCallback,
    TrainerPlaceholderValues,
    TrainerWithTimmScheduler,
    gather_objects,
)
from pa_core.testing import make_classification
from pa_core.types import SchedulerLike
from tests import small_runs
from tests.small_runs import samples
from tests.support.callbacks import CallAt, FailAt, KillAt, KilledError, RatesUsed
from tests.support.models import weights_of
from tests.support.pa_core.own_schedulers import Bare, OfEpochs, OfTwoMetrics, Timm
from tests.support.trainers import classifier_trainer

PLATEAU = partial(ReduceLROnPlateau, factor=0.5, patience=0)


def records_metric(values: Iterator[Any]) -> CallAt:
    """Records a metric at the end of each evaluation."""
    return CallAt("on_eval_epoch_end", lambda trainer: trainer.run_history.update_metric("quality", next(values)))


def make_trainer(*callbacks: TrainerCallback, trainer_class: Any = Trainer, lr: float = 1e-3) -> Any:
    """A trainer of a line, with a rate that changes little."""
    return small_runs.make_trainer(trainer_class, *callbacks, lr=lr)


def train(trainer: Any, num_epochs: int = 4, **options: Any) -> None:
    """Train with two updates in each epoch, and evaluate."""
    trainer.train(samples(8), num_epochs, **{"eval_dataset": samples(8), "per_device_batch_size": 4, **options})


def test_a_schedule_of_epochs_or_of_a_metric() -> None:
    """The rate changes after each epoch, as asked for or by the latest value of a metric, and not within it."""
    halving: dict[str, Any] = {"create_scheduler_fn": partial(ExponentialLR, gamma=0.5), "step_scheduler": "epoch"}
    plateau: dict[str, Any] = {"create_scheduler_fn": PLATEAU, "watch_metric": "quality"}
    for options, rates, end in (
        (halving, [1e-3, 5e-4, 2.5e-4, 1.25e-4], 6.25e-5),
        (plateau, [1e-3, 1e-3, 5e-4, 5e-4], 2.5e-4),
    ):
        used = RatesUsed()
        trainer = make_trainer(records_metric(iter([3.0, 4.0, 1.0, 2.0])), used)
        train(trainer, **options)
        assert used.rates[::2] == used.rates[1::2] == rates
        assert trainer.optimizer.param_groups[0]["lr"] == end
        assert options is halving or trainer.scheduler.best == 1.0


def test_a_metric_of_the_trainer_itself() -> None:
    """The losses of an epoch are there when an override is called after it; without an evaluation that of training."""
    calls: list[int] = []

    class Notes(Trainer):
        @override
        def scheduler_step(self) -> None:
            calls.append(self.num_updates_completed)
            super().scheduler_step()

    for metric, dataset in (("eval_loss_epoch", samples(8)), ("train_loss_epoch", None)):
        trainer = make_trainer(trainer_class=Notes)
        train(trainer, 2, eval_dataset=dataset, create_scheduler_fn=PLATEAU, watch_metric=metric)
        assert trainer.scheduler.best == trainer.run_history.get_latest_metric(metric)
        assert trainer.scheduler.last_epoch == 2
    assert calls == [2, 4] * 2


class OfMetric(OfEpochs):
    """One that wants nothing but a metric, by position."""

    @override
    def step(self, quality: float, /) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # another interface
        self.told.append(quality)


def test_schedulers_with_another_interface() -> None:
    """A scheduler gets the number of completed epochs, or a metric, where its ``step`` asks for it."""
    for create, options, expected in (
        (OfEpochs, {"step_scheduler": "epoch"}, [(1, None), (2, None)]),
        (OfEpochs, {"watch_metric": "quality"}, [(1, 3.0), (2, 4.0)]),
        (OfMetric, {"watch_metric": "quality"}, [3.0, 4.0]),
    ):
        trainer = make_trainer(records_metric(iter([3.0, 4.0])))
        train(trainer, 2, create_scheduler_fn=create, **options)
        assert trainer.scheduler.told == expected


def with_the_number_of_epochs(optimizer: Optimizer) -> Any:
    """As timm's ``create_scheduler_v2`` returns it."""
    return Timm(optimizer), 4


OF_EVALUATION = partial(StepLR, step_size=TrainerPlaceholderValues.EVAL_DATALOADER_LEN)
IN_TIMM = {"kind": TrainerWithTimmScheduler}


class StepsWithoutEpochs(StepLR):
    """Has ``step_update`` beside a ``step`` without a metric, as schedulers of pa-schedulers do."""

    def step_update(self, num_updates: int) -> None:
        """Set the value for a number of updates."""


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "the length of no evaluation": (
        OF_EVALUATION,
        {"eval_dataset": None},
        r"EVAL_DATALOADER_LEN has no value in this run(.|\n)*eval_dataset",
    ),
    "a metric that is misspelt": (PLATEAU, {"watch_metric": "eval_acuracy"}, "eval_loss_epoch, train_loss_epoch"),
    "torch in timm's trainer": (partial(StepLR, step_size=1), IN_TIMM, r"as timm's do(.|\n)*Use Trainer"),
    "pa-schedulers there": (partial(StepsWithoutEpochs, step_size=1), IN_TIMM, r"as timm's do(.|\n)*Use Trainer"),
    "timm's factory": (with_the_number_of_epochs, IN_TIMM, r"returned a tuple\..*\[0\]"),
    "epochs of timm": (Timm, {"step_scheduler": "epoch", **IN_TIMM}, "leave step_scheduler and watch_metric out"),
    "a metric of timm": (
        Timm,
        {"watch_metric": "eval_loss_epoch", **IN_TIMM},
        "leave step_scheduler and watch_metric out",
    ),
    "a metric after updates": (PLATEAU, {}, r"step\(\) needs metrics(.|\n)*watch_metric"),
    "a metric without an evaluation": (PLATEAU, {"eval_dataset": None}, r'watch_metric="train_loss_epoch"'),
    "an epoch after updates": (OfEpochs, {}, r'step\(\) needs epoch(.|\n)*step_scheduler="epoch"'),
    "a metric after epochs": (PLATEAU, {"step_scheduler": "epoch"}, r"step\(\) needs metrics(.|\n)*watch_metric"),
    "two metrics": (OfTwoMetrics, {"watch_metric": "quality"}, r"needs loss, quality(.|\n)*Override scheduler_step"),
    "no metric": (partial(StepLR, step_size=1), {"watch_metric": "quality"}, r'does not accept a metric(.|\n)*"epoch"'),
    "no step": (Bare, {}, r"has no step\(\)(.|\n)*StatefulSchedulerBase"),
    "timm": (Timm, {"step_scheduler": "epoch"}, r"TrainerWithTimmScheduler"),
    "timm after updates": (Timm, {}, r"TrainerWithTimmScheduler"),
    "no scheduler": (None, {"step_scheduler": "epoch"}, r"no scheduler to step"),
    "no evaluation": (PLATEAU, {"watch_metric": "eval_loss_epoch", "eval_dataset": None}, r"Pass eval_dataset"),
    "no such time": (PLATEAU, {"step_scheduler": "step"}, r'"update" or "epoch"'),
    "too short": (partial(OneCycleLR, max_lr=1, total_steps=3), {"step_scheduler": "epoch"}, "OneCycleLR of 3"),
}

OTHER_ERRORS: dict[str, type[Exception]] = {
    "a metric that is misspelt": MetricNotFoundError,
    "timm's factory": TypeError,
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_before_anything_is_trained(case: str) -> None:
    """The error names what is needed and what to pass; neither weights nor history have changed."""
    create, options, advice = REFUSED[case]
    trainer = make_trainer(trainer_class=options.get("kind", Trainer))
    weight = trainer.model.weight.clone()
    trainer.run_history.update_metric("earlier", 1.0)

    with pytest.raises(OTHER_ERRORS.get(case, ConfigurationError), match=advice):
        train(trainer, create_scheduler_fn=create, **{name: one for name, one in options.items() if name != "kind"})

    if case == "a metric that is misspelt":  # known at the end of the first epoch
        return
    assert torch.equal(trainer.model.weight, weight)
    assert case == "too short" or trainer.run_history.get_latest_metric("earlier") == 1.0


@pytest.mark.parametrize("interrupt_in", [2, 3, 4])
def test_a_resumed_schedule_is_the_uninterrupted_one(tmp_path: Path, interrupt_in: int) -> None:
    """A state after an epoch has the scheduler's memory of the metric: the rates that follow are the same."""
    values = [3.0, 4.0, 5.0, 1.0, 2.0]
    run: Callable[..., None] = partial(
        train, num_epochs=5, create_scheduler_fn=partial(PLATEAU, patience=1), watch_metric="quality"
    )
    whole = RatesUsed()
    run(make_trainer(whole, records_metric(iter(values))))
    save = SaveTrainingStateCallback(tmp_path, save_every_n_epochs=1)
    with pytest.raises(KilledError):
        run(make_trainer(records_metric(iter(values)), save, KillAt(2 * interrupt_in - 2, "on_train_step_end")))

    resumed = RatesUsed()
    rest = iter(values[interrupt_in - 1 :])
    run(make_trainer(resumed, records_metric(rest)), resume_from=tmp_path)
    assert len(set(whole.rates)) > 1
    assert resumed.rates == whole.rates[2 * interrupt_in - 2 :]


@pytest.mark.parametrize("limit", [3, 4])
def test_a_run_that_was_ended_within_an_epoch_steps_once_for_it_when_it_is_extended(tmp_path: Path, limit: int) -> None:
    """An epoch that ``max_num_train_steps`` cuts short is stepped after when it is finished, and not twice."""
    schedule: dict[str, Any] = {
        "create_scheduler_fn": partial(ExponentialLR, gamma=0.5), "step_scheduler": "epoch", "max_num_train_steps": 8
    }  # fmt: skip
    whole = make_trainer()
    train(whole, **schedule)
    train(make_trainer(SaveTrainingStateCallback(tmp_path)), **{**schedule, "max_num_train_steps": limit})

    extended = make_trainer()
    train(extended, **schedule, resume_from=tmp_path)

    assert extended.optimizer.param_groups[0]["lr"] == whole.optimizer.param_groups[0]["lr"] == 1e-3 * 0.5**4
    assert torch.equal(extended.model.weight, whole.model.weight)


class OwnMetric(Trainer):
    """Records a metric that each process computes for itself."""

    @override
    def eval_epoch_end(self) -> None:
        self.run_history.update_metric("own", 1.0 + 10 * self.process_index * self.num_epochs_completed)


@pytest.mark.runs_on("two_ranks")
def test_all_processes_step_with_the_same_value() -> None:
    """That of the first one counts on all."""
    trainer = make_trainer(trainer_class=OwnMetric)
    plateau = partial(PLATEAU, threshold=0, mode="max")
    train(trainer, 3, create_scheduler_fn=plateau, watch_metric="own", per_device_batch_size=2)
    assert gather_objects(trainer.optimizer.param_groups[0]["lr"]) == [2.5e-4, 2.5e-4]


HALVING = partial(ExponentialLR, gamma=0.5)


def train_updates(trainer: Trainer, updates: int = 4, **options: Any) -> None:
    """Train for so many updates."""
    trainer.train(samples(updates), num_epochs=1, per_device_batch_size=1, **options)


def test_the_scheduler_of_a_run_is_the_one_before_or_made_by_a_factory() -> None:
    """One that is assigned is stepped after each update, and kept after an evaluation or a stop; None leaves none."""
    used = RatesUsed()
    trainer = make_trainer(used, FailAt("on_optimizer_step_end", StopTrainingError("enough"), 3), lr=1.0)
    trainer.scheduler = assigned = HALVING(trainer.optimizer)
    train_updates(trainer, 2)
    trainer.evaluate(samples(4))
    train_updates(trainer, 9)
    train_updates(trainer, 1)
    assert trainer.scheduler is assigned
    assert used.rates == [1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125]

    train_updates(trainer, 1, create_scheduler_fn=partial(CosineAnnealingLR, T_max=4))
    assert isinstance(trainer.scheduler, CosineAnnealingLR)
    trainer.scheduler = None
    used.rates.clear()
    train_updates(trainer, 2)
    assert trainer.scheduler is None
    assert len(set(used.rates)) == 1


def test_a_factory_replaces_what_was_assigned_and_what_it_made_is_kept() -> None:
    """The next run goes on where its schedule stopped, also after a stop, and with an evaluation between them."""
    used = RatesUsed()
    trainer = make_trainer(used, FailAt("on_optimizer_step_end", StopTrainingError("enough"), 2), lr=1.0)
    trainer.scheduler = HALVING(SGD(trainer.model.parameters(), lr=1.0))
    with pytest.raises(ConfigurationError, match="another optimizer"):
        train_updates(trainer)
    train_updates(trainer, create_scheduler_fn=HALVING)
    trainer.evaluate(samples(4))
    train_updates(trainer)
    assert used.rates == [1.0, 0.5, 0.25, 0.125]


def test_an_override_that_needs_no_factory_makes_the_scheduler_of_each_run() -> None:
    """It is called for each run without a factory, unless a scheduler was assigned since."""

    class Halves(Trainer):
        @override
        def create_scheduler(self) -> SchedulerLike:
            return ExponentialLR(self.optimizer, gamma=0.5)

    trainer = make_trainer(trainer_class=Halves)
    train_updates(trainer)
    first = trainer.scheduler
    train_updates(trainer)
    assert isinstance(first, ExponentialLR)
    assert trainer.scheduler is not first

    trainer.scheduler = assigned = HALVING(trainer.optimizer)
    train_updates(trainer)
    assert trainer.scheduler is assigned


def of_another_optimizer(trainer: Any, _folder: Path) -> dict[str, Any]:
    """Assigned, it would change rates that are not used."""
    trainer.scheduler = HALVING(SGD(trainer.model.parameters(), lr=1.0))
    return {}


def kept_of_another_optimizer(trainer: Any, _folder: Path) -> dict[str, Any]:
    """So would one that is kept after the optimizer was replaced."""
    trainer.optimizer = SGD(trainer.model.parameters(), lr=1.0)
    return {}


def before_a_group_was_added(trainer: Any, _folder: Path) -> dict[str, Any]:
    """It has no rate for the new group."""
    trainer.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 0.1})
    return {}


def too_short(trainer: Any, _folder: Path) -> dict[str, Any]:
    """Torch's one-cycle schedule ends with an error, and is kept from run to run."""
    train_updates(trainer, create_scheduler_fn=partial(OneCycleLR, max_lr=1.0, total_steps=4))
    return {}


def of_a_longer_run(trainer: Any, folder: Path) -> dict[str, Any]:
    """A state that the run cannot go on with."""
    trainer.save_training_state(folder / "state")
    return {"updates": 8, "resume_from": folder / "state"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (of_another_optimizer, "another optimizer"),
        (kept_of_another_optimizer, r"trainer.scheduler = None"),
        (before_a_group_was_added, r"(?s)1 group.*2 group"),
        (too_short, r"shorter than the run.*OneCycleLR of 4 updates has made 4 of them"),
        (of_a_longer_run, "would not continue"),
    ],
)
def test_a_scheduler_that_does_not_fit_costs_nothing_that_was_recorded(
    change: Callable[..., dict[str, Any]], message: str, tmp_path: Path
) -> None:
    """It is refused before the first update, and weights and metrics of the run before are still there."""
    trainer = make_trainer()
    train_updates(trainer, create_scheduler_fn=HALVING)
    options = change(trainer, tmp_path)
    trained = weights_of(trainer.get_model())
    losses, epoch = trainer.run_history.get_metric_values("train_loss_epoch"), trainer.run_history.current_epoch
    with pytest.raises((ConfigurationError, CheckpointError), match=message):
        train_updates(trainer, **options)
    assert torch.equal(weights_of(trainer.get_model()), trained)
    assert trainer.run_history.get_metric_values("train_loss_epoch") == losses
    assert trainer.run_history.current_epoch == epoch


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("create", [HALVING, partial(LambdaLR, lr_lambda=lambda step: 1 / (1 + step))])
def test_an_assigned_scheduler_is_saved_and_resumed(tmp_path: Path, create: Any, is_new: bool) -> None:
    """With the rates of the uninterrupted run, in a script that assigns it again and in the same trainer."""

    def start(*callbacks: TrainerCallback) -> Any:
        trainer = make_trainer(*callbacks)
        trainer.scheduler = create(trainer.optimizer)
        return trainer

    uninterrupted, resumed = RatesUsed(), RatesUsed()
    train_updates(start(uninterrupted), 6)
    save, kill = SaveTrainingStateCallback(tmp_path, save_every_n_steps=2), KillAt(3)
    trainer = start(save, kill)
    with pytest.raises(KilledError):
        train_updates(trainer, 6)
    for callback in (save, kill):
        trainer.callback_handler.remove_callback(callback)
    trainer = start() if is_new else trainer
    trainer.callback_handler.add_callback(resumed)
    train_updates(trainer, 6, resume_from=tmp_path)
    assert len(set(uninterrupted.rates)) == 6
    assert resumed.rates == uninterrupted.rates[2:]


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


def test_the_scheduler_is_told_how_far_the_run_has_come() -> None:
    """Without an evaluation there is no metric; a number of updates closes the last epoch, and a stop does not."""
    trainer = classifier_trainer(TrainerWithTimmScheduler)
    trainer.train(DATA, 1, EVAL_DATA, create_scheduler_fn=Timm)
    trainer.train(DATA, 2, per_device_batch_size=16, create_scheduler_fn=Timm, reset_run_history=False)
    assert told(trainer) == [1, (1, None), 2, (2, None)]
    trainer.train(DATA, 9, per_device_batch_size=4, max_num_train_steps=6, create_scheduler_fn=Timm)
    assert told(trainer)[-3:] == [5, 6, (2, None)]
    trainer.callback_handler.add_callback(FailAt("on_optimizer_step_end", StopTrainingError(), update=6))
    trainer.train(DATA, 9, per_device_batch_size=4, create_scheduler_fn=Timm)
    assert told(trainer)[-3:] == [(1, None), 5, 6]


@pytest.mark.parametrize("in_epochs", [True, False])
def test_each_update_is_made_with_the_rate_of_the_updates_before_it(in_epochs: bool) -> None:
    """The first update has the rate at 0, and a schedule over epochs changes between them only."""
    rates = RatesUsed()
    trainer = classifier_trainer(TrainerWithTimmScheduler, rates)
    trainer.train(DATA, 3, per_device_batch_size=8, create_scheduler_fn=partial(RateIsTime, in_epochs=in_epochs))
    assert rates.rates == ([0, 0, 1, 1, 2, 2] if in_epochs else [0, 1, 2, 3, 4, 5])
    assert trainer.optimizer.param_groups[0]["lr"] == (3 if in_epochs else 6)


def test_the_state_of_the_scheduler_is_part_of_a_checkpoint(tmp_path: Path) -> None:
    """It is saved and loaded as that of any other scheduler."""
    saved = classifier_trainer(TrainerWithTimmScheduler)
    saved.train(DATA, 2, create_scheduler_fn=Timm)
    saved.save_checkpoint(tmp_path / "checkpoint.pt")
    other = classifier_trainer(TrainerWithTimmScheduler)
    other.train(DATA, 1, create_scheduler_fn=Timm)

    other.load_checkpoint(tmp_path / "checkpoint.pt")

    assert told(other) == told(saved) != []


class _Plateau(Timm):
    """Steps a scheduler of torch's, of which its state has a part, as that of timm's scheduler for plateaus."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer)
        self.inner = ReduceLROnPlateau(optimizer, patience=2, threshold=10.0)

    @override
    def step(self, epoch: int, metric: float | None = None) -> None:
        self.inner.step(0.0 if metric is None else metric)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"best": self.inner.best}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.best = state_dict["best"]


@pytest.mark.parametrize("epochs", [1, 2, 3, 4])
def test_what_the_state_of_a_scheduler_of_timm_leaves_out_is_saved(tmp_path: Path, epochs: int) -> None:
    """The scheduler within it counts on where it was, in a resumed run and from a checkpoint file."""
    whole, first, second = (make_trainer(trainer_class=TrainerWithTimmScheduler) for _ in range(3))
    train(whole, 7, create_scheduler_fn=_Plateau)
    train(first, epochs, create_scheduler_fn=_Plateau)
    first.save_training_state(tmp_path / "state")
    train(second, 7, create_scheduler_fn=_Plateau, resume_from=tmp_path / "state")
    assert isinstance(whole.scheduler, _Plateau)
    assert isinstance(second.scheduler, _Plateau)
    assert second.scheduler.inner.state_dict() == whole.scheduler.inner.state_dict()
    assert second.optimizer.param_groups[0]["lr"] == whole.optimizer.param_groups[0]["lr"]
