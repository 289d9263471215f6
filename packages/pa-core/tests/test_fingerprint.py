"""The fingerprint of a run: the same digits for the same bits, others for any other bit, and one for all processes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR, SequentialLR, StepLR

from pa_core import AnyTrainer, Run, SaveTrainingStateCallback, Trainer, gather_objects
from pa_core.distributed import num_processes, rank
from pa_core.errors import RanksDifferError
from pa_core.testing import make_regression
from tests.support.callbacks import CallAt, KillAt, KilledError
from tests.support.histories import DocumentedHistory

everywhere = pytest.mark.runs_on("one_process", "two_ranks")


def make_trainer(*callbacks: Any, **options: Any) -> Trainer[nn.Sequential]:
    """A trainer of a network with statistics, with a second module."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = Adam(model.parameters(), lr=0.01)
    trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=callbacks, **options)
    added = nn.Linear(2, 1)
    trainer.add_module("added", added, SGD(added.parameters(), lr=0.1))
    return trainer


def trained(*callbacks: Any, updates: int = 6, **options: Any) -> Trainer[nn.Sequential]:
    """The same trainer after some updates."""
    trainer = make_trainer(*callbacks)
    schedule = partial(StepLR, step_size=2)
    settings: dict[str, Any] = {"per_device_batch_size": 4, "create_scheduler_fn": schedule, **options}
    trainer.train(make_regression(32), 2, max_num_train_steps=updates, **settings)
    return trainer


@everywhere
def test_equal_runs_have_equal_fingerprints_on_all_processes_and_another_update_another_one() -> None:
    """Within a run, too, and asking for it changes nothing."""
    seen: list[str] = []
    whole = trained(CallAt("on_optimizer_step_end", lambda trainer: seen.append(trainer.fingerprint())))
    expected = trained().fingerprint()
    assert whole.fingerprint() == whole.fingerprint() == expected
    assert gather_objects(expected) == [expected] * num_processes()
    assert len(expected) == 16
    assert int(expected, 16)
    assert len({*seen, expected, trained(updates=5).fingerprint()}) == len(seen) + 2


@everywhere
def test_a_resumed_run_has_the_fingerprint_of_the_whole_one(shared_tmp_path: Path) -> None:
    """Seconds and the sessions of a run do not count."""
    states = SaveTrainingStateCallback(shared_tmp_path, save_every_n_steps=1)
    with pytest.raises(KilledError):
        trained(states, KillAt(3))
    assert trained(resume_from=shared_tmp_path).fingerprint() == trained().fingerprint()


def _next_up(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.view(-1)[0].nextafter_(torch.tensor(torch.inf))


def _set_state(trainer: AnyTrainer) -> None:
    next(iter(trainer.optimizer.state.values()))["exp_avg"].view(-1)[0].neg_()


def _set_rate(optimizer: Optimizer) -> None:
    optimizer.param_groups[0]["lr"] *= 2


CHANGES: dict[str, Callable[[Any], object]] = {
    "weight": lambda trainer: _next_up(trainer.model[0].weight),
    "buffer": lambda trainer: trainer.model[1].num_batches_tracked.add_(1),
    "added module": lambda trainer: _next_up(trainer.modules["added"].weight),
    "state of the optimizer": _set_state,
    "learning rate": lambda trainer: _set_rate(trainer.optimizer),
    "other optimizer": lambda trainer: _set_rate(trainer.named_optimizers()["added"]),
    "scheduler": lambda trainer: setattr(trainer.scheduler, "gamma", 0.5),
    "metric": lambda trainer: trainer.run_history.update_metric("accuracy", 0.5),
    "metric that is no number": lambda trainer: trainer.run_history.update_metric("labels", ["a", np.arange(3)]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_other_bit_gives_another_fingerprint(change: str) -> None:
    """Of weights, buffers, optimizers, schedulers and metrics."""
    trainer = trained()
    before = trainer.fingerprint()
    CHANGES[change](trainer)
    assert trainer.fingerprint() != before


def test_metrics_count_by_their_values() -> None:
    """In any kind of number and container, and in a history that a script brings."""

    def fingerprint(value: object, **options: Any) -> str:
        trainer = make_trainer(**options)
        trainer.run_history.update_metric("value", value)
        return trainer.fingerprint()

    numbers = [0.5, np.float32(0.5), torch.tensor(0.5), np.float64(0.5)]
    assert len({fingerprint(value) for value in numbers}) == 1
    containers = [{"a", "b"}, {"a": 1}, {"a": 2}, [1, [2]], [[1], 2], np.arange(4), torch.ones(4)]
    others = [0.5, 1, math.nan, "a", "b", *containers]
    assert len({fingerprint(value) for value in others}) == len(others)
    assert fingerprint({"c", "a", "b"}) == fingerprint({"b", "c", "a"})
    assert len({fingerprint(value, run_history=DocumentedHistory()) for value in (0.5, 1.5)}) == 2


def test_any_scheduler_and_a_trainer_without_an_optimizer_have_a_fingerprint() -> None:
    """Functions count by their class alone, as none of them has a value."""
    trainer = Trainer(nn.Linear(1, 1), nn.MSELoss(), None, callbacks=[])
    assert trainer.fingerprint() == trainer.fingerprint()
    makers: list[Callable[[Optimizer], LRScheduler]] = [
        lambda optimizer: LambdaLR(optimizer, lambda _: 1.0),
        lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=9),
        lambda optimizer: SequentialLR(optimizer, [StepLR(optimizer, 2), StepLR(optimizer, 3)], [1]),
    ]
    for make in makers:
        fingerprints = set[str]()
        for _ in range(2):
            scheduled = make_trainer()
            scheduled.scheduler = make(scheduled.optimizer)
            fingerprints.add(scheduled.fingerprint())
        assert len(fingerprints) == 1


def test_a_custom_loop_has_a_fingerprint() -> None:
    """Of all its models."""

    def run(updates: int) -> str:
        torch.manual_seed(0)
        models = {"one": nn.Linear(4, 1), "two": nn.Linear(4, 1)}
        optimizers = {name: SGD(model.parameters(), lr=0.1) for name, model in models.items()}
        run = Run(models, optimizers, make_regression(32), num_epochs=1, callbacks=[], max_num_train_steps=updates)
        with run:
            for inputs, targets in run.batches():
                for name, model in run.models.items():
                    run.backward((model(inputs) - targets).square().mean(), model=name)
                    run.step(name)
        return run.fingerprint()

    assert run(2) == run(2) != run(3)


@pytest.mark.runs_on("two_ranks")
def test_processes_that_differ_are_told_so_on_each() -> None:
    """And in what; statistics of layers, which each process has, are compared as states save them."""
    trainer = trained()
    trainer.run_history.update_metric("rank", rank())
    with pytest.raises(RanksDifferError, match=r"the metric rank: .*last 0.0 on rank 0, .*last 1.0") as error:
        trainer.fingerprint()
    assert "weights" not in str(error.value)
