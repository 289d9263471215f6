"""Runs that are killed while a tracker holds rows back: what it shows after they were resumed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.launching import Launch
from tests.support.pa_callbacks_extra.late_tracker import put_in_place, read_rows

SCRIPT = """
import os, signal, sys
import torch
from torch import nn
from pa_callbacks_extra import TrackerCallback
from pa_core import SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_core.testing import make_regression

class Kill(TrainerCallback):
    def on_optimizer_step_end(self, trainer, update, **kwargs):
        if update == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)

torch.default_generator.manual_seed(0)
model = nn.Linear(4, 1)
track = TrackerCallback("trackio", "line", every_n_updates=1)
save = SaveTrainingStateCallback("states", save_every_n_steps=4)
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[2]))
trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=[track, save, Kill])
data = make_regression(24)
trainer.train(data, 2, data, per_device_batch_size=4, resume_from="states", resume_missing="start")
"""
STEPS = {
    "train/loss": range(1, 13),
    "train/learning_rate": range(1, 13),
    "train/samples_per_second": range(1, 13),
    "train_loss_epoch": (6, 12),
    "eval_loss_epoch": (6, 12),
}
"""The steps at which a run of two epochs has each metric."""


def train(
    launch: Launch, folder: Path, *, at_a_time: int, kill_in: int, last_rate: str = "0.1"
) -> dict[str, Counter[int]]:
    """Train, killed in an update, resume, and return how often each metric has a value at each step."""
    env = {**put_in_place(folder / "packages"), "ROWS_AT_A_TIME": str(at_a_time)}
    assert launch(SCRIPT, str(kill_in), "0.1", env=env, fresh=True).status == -9
    assert launch(SCRIPT, "0", last_rate, env=env, fresh=True).status == 0
    rows = read_rows(folder / "rows.jsonl")
    return {name: Counter(row["step"] for row in rows if name in row) for name in STEPS}


@pytest.mark.parametrize("at_a_time", [1, 100])
def test_a_killed_run_lacks_no_point_and_has_none_twice(launch: Launch, tmp_path: Path, at_a_time: int) -> None:
    """What the tracker had not written comes again from the training state, and what it had written does not."""
    shown = train(launch, tmp_path, at_a_time=at_a_time, kill_in=11)
    assert shown == {name: Counter(steps) for name, steps in STEPS.items()}


def test_a_run_that_continues_differently_shows_both_ways(launch: Launch, tmp_path: Path) -> None:
    """Points that differ from those before the kill, as with another learning rate, are there next to them."""
    losses = train(launch, tmp_path, at_a_time=1, kill_in=8, last_rate="0.3")["train/loss"]
    assert {step: losses[step] for step in (4, 5, 6, 9)} == {4: 1, 5: 1, 6: 2, 9: 1}
