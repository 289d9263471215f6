"""Runs within ``undoing_runs`` leave no trace."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from pa_core import Trainer
from pa_core.testing import make_regression


def test_a_run_that_is_undone_leaves_no_trace() -> None:
    """Weights, buffers, gradients, optimizer, an assigned scheduler, history and random numbers are as before."""
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
    with trainer.undoing_runs():
        trainer.train(make_regression(64, num_features=4), num_epochs=3)
        assert repr(state()) != repr(before)
    assert repr(state()) == repr(before)
    assert all(one.grad is None for one in model.parameters())
