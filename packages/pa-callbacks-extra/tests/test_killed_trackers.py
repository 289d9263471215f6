"""Runs that are killed while a tracker holds rows back: what it shows after they were resumed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.event_files import read_curves
from tests.launching import Launch
from tests.support.pa_callbacks_extra.late_tracker import put_in_place, read_rows

SCRIPT = """
import json, os, signal, sys
import torch
import torch.utils.tensorboard
from torch import nn
from pa_callbacks_extra import TrackerCallback
from pa_core import SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_core.testing import make_regression

def train(tracker, save_every, kill_in, rate):
    class Kill(TrainerCallback):
        def on_optimizer_step_end(self, trainer, update, **kwargs):
            if update == kill_in:
                os.kill(os.getpid(), signal.SIGKILL)

    torch.default_generator.manual_seed(0)
    model = nn.Linear(4, 1)
    track = TrackerCallback(tracker, "line", every_n_updates=1)
    save = SaveTrainingStateCallback("states", save_every_n_steps=save_every)
    trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=rate), callbacks=[track, save, Kill])
    data = make_regression(24)
    trainer.train(data, 2, data, per_device_batch_size=4, resume_from="states", resume_missing="start")

for name, (tracker, at_a_time, save_every, kill_in, last_rate) in json.loads(sys.argv[1]).items():
    os.mkdir(name)
    for update, rate, status in ((kill_in, 0.1, -9), (0, last_rate, 0)):
        process = os.fork()
        if process == 0:
            os.chdir(name)
            os.environ["ROWS_AT_A_TIME"] = str(at_a_time)
            train(tracker, save_every, update, rate)
            sys.exit()
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == status
"""
RUNS = {
    "row by row": ("trackio", 1, 4, 11, 0.1),
    "at the end": ("trackio", 100, 4, 11, 0.1),
    "continues differently": ("trackio", 1, 4, 8, 0.3),
    "saved before an evaluation": ("tensorboard", 1, 6, 8, 0.1),
}
"""The tracker, how many rows it writes at a time, the updates from one training state to the next, the update in which
a run is killed, and the learning rate after that."""
STEPS = {
    "train/loss": range(1, 13),
    "train/learning_rate": range(1, 13),
    "train/samples_per_second": range(1, 13),
    "train_loss_epoch": (6, 12),
    "eval_loss_epoch": (6, 12),
}
"""The steps at which a run of two epochs has each metric."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all runs were killed and resumed; accelerate looks for packages of trackers when it is imported."""
    folder = tmp_path_factory.mktemp("runs")
    env = put_in_place(folder / "packages")
    assert Launch(folder)(SCRIPT, json.dumps(RUNS), env=env, fresh=True).status == 0
    return folder


def shown(folder: Path, run: str) -> dict[str, Counter[int]]:
    """How often each metric of a run has a value at each step."""
    if RUNS[run][0] == "tensorboard":
        curves = read_curves(folder / run / "runs" / "line")
        return {name: Counter(step for step, _ in curves[name]) for name in STEPS}
    rows = read_rows(folder / run / "rows.jsonl")
    return {name: Counter(row["step"] for row in rows if name in row) for name in STEPS}


@pytest.mark.parametrize("run", ["row by row", "at the end", "saved before an evaluation"])
def test_a_killed_run_lacks_no_point_and_has_none_twice(folder: Path, run: str) -> None:
    """What the tracker had not written comes again from the training state, and what it had written does not.

    A run that resumes with the evaluation at the end of an epoch repeats its metrics, at the step of the state.
    """
    assert shown(folder, run) == {name: Counter(steps) for name, steps in STEPS.items()}


def test_a_run_that_continues_differently_shows_both_ways(folder: Path) -> None:
    """Points that differ from those before the kill, as with another learning rate, are there next to them."""
    losses = shown(folder, "continues differently")["train/loss"]
    assert {step: losses[step] for step in (4, 5, 6, 9)} == {4: 1, 5: 1, 6: 2, 9: 1}
