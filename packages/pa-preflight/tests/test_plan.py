"""A plan says what a run is going to do, and the run does it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    ArgumentTypeError,
    ConfigurationError,
    LimitBatchesCallback,
    SaveTrainingStateCallback,
    Trainer,
)
from pa_core.testing import make_regression
from pa_preflight import Plan, plan
from tests.support.pa_preflight.planned_runs import Observed, planned_run

_RANDOM_STATES = 15_000
"""What states within the epochs of a custom loader have besides: the random states at the beginning of the epoch."""


def _cases(default: int, more: int) -> list[object]:
    return [*range(default), *(pytest.param(seed, marks=pytest.mark.more_cases) for seed in range(default, more))]


@pytest.mark.parametrize("seed", _cases(30, 1000))
@pytest.mark.filterwarnings("ignore")
def test_a_run_does_what_was_planned(seed: int, tmp_path: Path) -> None:
    """Epochs, updates, evaluations, saves, deletions, learning rates and memory are those of the plan."""
    folder = tmp_path / "states"
    (trainer, arguments), observed = planned_run(seed, folder)
    planned = plan(trainer, **arguments)
    assert not folder.exists()
    assert planned.notes == ()
    observed.rates.clear()  # of the updates that were timed
    trainer.train(**arguments)

    assert planned.updates == trainer.num_updates_completed == len(observed.rates)
    assert [(one.batches, one.updates, one.ends_at) for one in planned.epochs] == observed.epochs
    assert planned.samples == observed.samples_of_epochs[0]
    assert [
        (one.update, one.name, one.batches, one.kind == "intermediate") for one in planned.evaluations
    ] == observed.evaluations
    _check_saves(planned, observed)
    _check_disk(planned, observed)
    _check_rates(planned, observed.rates)
    _check_memory(planned, observed, trainer.model, trainer.optimizer)
    is_cut = planned.epochs[-1].updates < trainer.epoch_lengths.updates_of(len(planned.epochs) - 1)
    for state in folder.glob("[!.]*/"):
        size = sum(file.stat().st_size for file in state.iterdir())
        is_in_cut_epoch = is_cut and state.name in ("final", f"epoch_{len(planned.epochs)}")
        is_within_epoch = state.name.startswith("step") or is_in_cut_epoch
        if is_within_epoch and isinstance(arguments["train_dataset"], DataLoader):
            size -= _RANDOM_STATES
        assert planned.memory.saved_state == pytest.approx(size, rel=0.01)


def _check_saves(planned: Plan, observed: Observed) -> None:
    """The states that are there when the next one comes, and at the end."""
    kept: set[str] = set()
    there = list[tuple[int, set[str]]]()
    for one in planned.saves:
        there.append((one.update, set(kept)))
        kept = {*kept, one.name}.difference(one.deletes)
    if not planned.saves or planned.saves[-1].name != "final":
        there.append((planned.updates, kept))
    assert there == observed.states_at_saves
    assert kept == observed.states()


def _check_disk(planned: Plan, observed: Observed) -> None:
    """A new state is there before an old one is deleted."""
    if not planned.saves or planned.memory.saved_state is None:
        assert planned.disk is None
        return
    assert planned.disk is not None
    before_saves = [len(states) for _, states in observed.states_at_saves[: len(planned.saves)]]
    assert planned.disk.peak == (max(before_saves) + 1) * planned.memory.saved_state
    assert planned.disk.at_end == len(observed.states()) * planned.memory.saved_state
    assert planned.disk.free > 0


def _check_rates(planned: Plan, observed: Sequence[Sequence[float]]) -> None:
    """Each planned rate is the one of its update, and between two of them the rate never turns."""
    assert len(planned.rates) == len(observed[0])
    for one in planned.rates:
        rates = [of_groups[one.group] for of_groups in observed]
        assert [point.rate for point in one.points] == [rates[point.update - 1] for point in one.points]
        assert (one.points[0].update, one.points[-1].update) == (1, len(rates))
        assert {min(rates), max(rates)} <= {point.rate for point in one.points}
        assert [point.rate for point in one.course] == [rates[point.update - 1] for point in one.course]
        assert len(one.course) == len(rates) or len({*rates}) == 1
        for before, after in zip(one.points[:-1], one.points[1:], strict=True):
            part = rates[before.update - 1 : after.update]
            assert part in (sorted(part), sorted(part, reverse=True))


def _check_memory(planned: Plan, observed: Observed, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state = [value for of_one in optimizer.state.values() for value in of_one.values() if isinstance(value, Tensor)]
    parameters = [*model.parameters()]
    assert planned.memory.optimizer == sum(one.nbytes for one in state)
    assert planned.memory.weights == sum(one.nbytes for one in (*parameters, *model.buffers()))
    assert planned.memory.gradients == observed.gradients == sum(one.trained_bytes for one in planned.parameters)
    assert sum(one.trained + one.frozen for one in planned.parameters) == sum(one.numel() for one in parameters)


def _trainer(*callbacks: SaveTrainingStateCallback) -> Trainer:
    model = nn.Linear(4, 1)
    return Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=callbacks)


def test_a_plan_is_printed_as_a_table() -> None:
    """It fits on a screen, and has its numbers."""
    trainer = _trainer(SaveTrainingStateCallback(save_every_n_steps=1, max_checkpoints=2))
    text = str(plan(trainer, make_regression(80), num_epochs=30, eval_dataset=make_regression(20)))
    assert len(text.splitlines()) < 25
    assert "300 updates in all" in text
    assert "after epochs, the set: 3 batches, after update 10, 20, 30, ..., 300 (30 times)" in text


def test_the_time_of_a_run_is_planned() -> None:
    """From updates and batches that wait, in two evaluations with a set of its own each."""
    waits = 0.02

    class Waits(Trainer):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            time.sleep(waits)
            return super().calculate_train_batch_loss(batch)

        @override
        def calculate_eval_batch_loss(self, batch: Any) -> Any:
            time.sleep(waits if self.eval_name == "near" else 2 * waits)
            return super().calculate_eval_batch_loss(batch)

    model = nn.Linear(4, 1)
    trainer = Waits(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[])
    sets = {"near": make_regression(80), "far": make_regression(160)}
    seconds = plan(trainer, make_regression(160), 5, sets, gradient_accumulation_steps=2).seconds
    assert seconds.update is not None
    assert seconds.update > 2 * waits
    assert seconds.updates == pytest.approx(5 * 10 * seconds.update)
    assert seconds.evaluations is not None
    assert seconds.evaluations > 5 * (10 * waits + 20 * 2 * waits)
    assert seconds.total == 50 * seconds.update + seconds.evaluations


def test_a_run_that_fails_is_planned_without_times() -> None:
    """Notes say what has failed: an update, an evaluation."""

    class Fails(Trainer):
        @override
        def calculate_eval_batch_loss(self, batch: Any) -> Any:
            raise RuntimeError("no evaluation")

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = make_regression(80)
    planned = plan(Fails(model, nn.MSELoss(), optimizer, callbacks=[]), data, num_epochs=3, eval_dataset=data)
    assert planned.notes == ("An evaluation could not be made: RuntimeError: no evaluation",)
    assert planned.seconds.update is not None
    assert (planned.seconds.evaluations, planned.seconds.total) == (None, None)
    assert planned.memory.peak is not None

    planned = plan(Trainer(model, nn.L1Loss(), optimizer, callbacks=[]), TensorDataset(torch.ones(8, 3)), num_epochs=1)
    assert planned.updates == 1
    assert planned.seconds.update is None
    assert planned.memory.peak is None
    assert "An update could not be made" in planned.notes[0]


def test_the_time_of_evaluations_without_an_end_is_left_out() -> None:
    """A note says so, and updates are timed all the same."""
    planned = plan(_trainer(), make_regression(80), num_epochs=2, eval_dataset=_Stream())
    assert planned.seconds.updates is not None
    assert planned.seconds.evaluations is None
    assert planned.notes == (
        "The time of evaluations is left out: a set has no length, or its evaluation was not reached in time.",
    )


def test_updates_that_take_long_are_not_all_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timing ends within an update, too, and the number of batches tells the rest."""
    monkeypatch.setattr("pa_preflight._timing._FIRST", 0.2)
    steps: list[int] = []

    class Waits(Trainer):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            steps.append(len(batch))
            time.sleep(0.1)
            return super().calculate_train_batch_loss(batch)

    model = nn.Linear(4, 1)
    trainer = Waits(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[])
    seconds = plan(trainer, make_regression(800), num_epochs=1, gradient_accumulation_steps=50).seconds
    assert len(steps) < 10
    assert seconds.update is not None
    assert seconds.update > 50 * 0.1


def test_learning_rates_are_drawn(tmp_path: Path) -> None:
    """A curve for each group, from all updates; without rates there is nothing to draw."""
    model = nn.Linear(4, 1)
    groups: list[dict[str, Any]] = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.01}]
    trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(groups, lr=0.1), callbacks=[])
    schedule = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9)
    planned = plan(trainer, make_regression(80), num_epochs=300, create_scheduler_fn=schedule)
    assert 1000 <= len(planned.rates[0].course) <= 2 * 1000
    picture = planned.plot_rates(tmp_path / "pictures" / "rates.svg").read_text()
    assert "optimizer, group 0" in picture
    assert "optimizer, group 1" in picture

    followed = partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=1)
    without = plan(trainer, make_regression(80), 1, create_scheduler_fn=followed, watch_metric="train_loss_epoch")
    with pytest.raises(ConfigurationError, match="its notes say why"):
        without.plot_rates(tmp_path / "rates.png")


def test_a_custom_callback_is_left_out() -> None:
    """Also one that is derived from a callback that limits batches."""

    class Limits(LimitBatchesCallback):
        @override
        def on_prepare_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            raise AssertionError

    model = nn.Linear(4, 1)
    trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[Limits(1)])
    planned = plan(trainer, make_regression(80), num_epochs=1)
    assert planned.notes == ("Limits is left out: a subclass may do something else.",)
    assert planned.updates == 10


def test_what_cannot_be_planned_is_said() -> None:
    """A stream, a scheduler that follows a metric, states by the clock, and where a run resumes from."""
    trainer = _trainer(SaveTrainingStateCallback(save_every_n_seconds=60.0, save_at_end=False))
    planned = plan(
        trainer,
        _Stream(),
        num_epochs=1,
        eval_dataset=make_regression(8),
        max_num_train_steps=5,
        create_scheduler_fn=partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=1),
        watch_metric="eval_loss_epoch",
        resume_from="nowhere",
    )
    assert (planned.updates, planned.saves, planned.rates) == (5, (), ())
    for number, reason in enumerate(("resume_from", "save_every_n_seconds", "no length", "depend on a metric")):
        assert reason in planned.notes[number]


class _Stream(IterableDataset[tuple[Tensor, Tensor]]):
    @override
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from ((torch.ones(4), torch.ones(1)) for _ in range(64))


def test_a_plan_takes_the_arguments_of_train() -> None:
    """Anything else is an error that says what is needed."""
    with pytest.raises(ArgumentTypeError, match="needs the Trainer of the run"):
        plan(_NoTrainer())
    wrong: dict[str, Any] = {"epochs": 1}
    with pytest.raises(ArgumentTypeError, match="takes the arguments of train"):
        plan(_trainer(), make_regression(8), **wrong)


class _NoTrainer:
    def train(self) -> None:
        """Has the method alone."""


def test_batches_that_fit_are_tried_once_and_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a note of an earlier start, the plan has the batches that the run will have."""
    (tmp_path / "per_device_batch_size_on_cpu.json").write_text('{"fits": 4, "does_not_fit": 8}')
    model = nn.Linear(4, 1)
    states = SaveTrainingStateCallback(tmp_path)
    trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[states])
    arguments: dict[str, Any] = {"num_epochs": 1, "per_device_batch_size": "fit", "samples_per_update": 32}
    planned = plan(trainer, make_regression(64), **arguments)
    assert capsys.readouterr().out.count("Computing 4 samples at a time") == 1
    trainer.train(make_regression(64), **arguments)
    assert planned.config == trainer.run_config
