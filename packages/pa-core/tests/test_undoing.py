"""Runs within ``dry_run`` leave no trace."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from pa_core import Run, SaveTrainingStateCallback, Trainer
from pa_core.testing import make_regression
from tests.support.held_state import OTHERS, PLACES, WAYS, make


def test_a_run_that_is_undone_leaves_no_trace(tmp_path: Path) -> None:
    """Weights, gradients, optimizer, scheduler, history and random numbers are as before, even after a load."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=[])
    trainer.train(make_regression(64, num_features=4), num_epochs=1, create_scheduler_fn=lambda one: StepLR(one, 3))
    assert trainer.scheduler is not None

    def state() -> list[object]:
        assert trainer.scheduler is not None
        parts = (
            model.state_dict(),
            optimizer.state_dict(),
            trainer.scheduler.state_dict(),
            trainer.num_updates_completed,
        )
        return [
            *copy.deepcopy(parts),
            [*trainer.run_history.get_metric_values("train_loss_epoch")],
            torch.get_rng_state(),
        ]

    before = state()
    trainer.save_training_state(tmp_path)
    with trainer.dry_run():
        trainer.train(make_regression(64, num_features=4), num_epochs=3)
        trainer.load_training_state(tmp_path)
        trainer.train(make_regression(64, num_features=4), num_epochs=3)
        assert repr(state()) != repr(before)
    assert repr(state()) == repr(before)
    assert all(one.grad is None for one in model.parameters())


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.1)


@pytest.mark.parametrize("makes_optimizer", [False, True])
def test_a_loop_that_is_undone_leaves_no_trace(makes_optimizer: bool) -> None:
    """The block of a run can be entered again, and is then what it would have been without the first time."""

    def finished(undone: bool) -> str:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        optimizer = None if makes_optimizer else _adam(model)
        generator = torch.Generator().manual_seed(1)
        loader = DataLoader(make_regression(60, num_features=4), batch_size=8, shuffle=True, generator=generator)
        run = Run(
            model,
            optimizer,
            loader,
            num_epochs=2,
            gradient_accumulation_steps=3,
            create_scheduler_fn=lambda one: StepLR(one, 2),
            create_optimizer_fn=_adam if makes_optimizer else None,
        )

        def loop() -> None:
            with run:
                for inputs, targets in run.batches():
                    run.backward((model(inputs) - targets).square().mean())
                    run.step()

        if undone:
            with run.dry_run():
                loop()
                assert run.num_updates_completed == 6
            assert run.num_updates_completed == 0
            assert list(run.optimizers) == ([] if makes_optimizer else ["optimizer"])
        loop()
        return run.fingerprint()

    assert finished(undone=True) == finished(undone=False)


def test_a_loop_that_is_undone_does_not_resume(tmp_path: Path) -> None:
    """Within ``dry_run`` a run begins anew, where it would otherwise be complete."""

    def make() -> Run[nn.Linear, Any]:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        save = SaveTrainingStateCallback(tmp_path)
        arguments: dict[str, Any] = {"num_epochs": 1, "callbacks": [save]}
        if any(tmp_path.iterdir()):
            arguments["resume_from"] = tmp_path
        return Run(model, torch.optim.SGD(model.parameters(), 0.1), make_regression(64, num_features=4), **arguments)

    def updates(run: Run[nn.Linear, Any]) -> int:
        number = 0
        with run:
            for inputs, targets in run.batches():
                run.backward((run.model(inputs) - targets).square().mean())
                number += run.step()
        return number

    assert updates(make()) == 8
    run = make()
    with run.dry_run(), run.callback_handler.replaced_by([]):
        assert updates(run) == 8
    assert updates(run) == 0


@pytest.mark.parametrize(
    ("way", "place"),
    [*((way, PLACES[number % len(PLACES)]) for number, way in enumerate(WAYS)), *((other, "") for other in OTHERS)],
)
def test_whatever_holds_state_is_put_back(way: str, place: str) -> None:
    """A run after one that is undone is the run that it would have been, wherever the script keeps what steps move."""
    plain = make(way, place).weights_after()
    tried = make(way, place)
    with tried.trainer.dry_run(*tried.arguments.values()):
        undone = tried.weights_after()
    assert tried.weights_after() == plain == undone
    assert make(way, place).weights_after() == plain


@pytest.mark.more_cases
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("way", WAYS)
def test_whatever_holds_state_is_put_back_from_anywhere(way: str, place: str) -> None:
    """Each way in each place."""
    test_whatever_holds_state_is_put_back(way, place)
