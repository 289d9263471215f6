"""The program that starts a killed script again does so from a process that has torch, and leaves other ends alone."""

from __future__ import annotations

from pathlib import Path

from tests.launching import Launch

KEEP_RUNNING = Path(__file__).parents[2] / "tools" / "keep_running.py"

TRAINING = """
import os, random, signal, sys

print("torch is there:", "torch" in sys.modules, sys.argv[1:], "draws", random.random(), flush=True)

is_first = not os.path.exists("states")

import torch
from pa_core import SaveTrainingStateCallback, Trainer, TrainerCallback

class Strike(TrainerCallback):
    def on_optimizer_step_end(self, trainer, update, **kwargs):
        if update == 6 and is_first:
            os.kill(os.getpid(), signal.SIGKILL)
        if update == 9:
            os.kill(os.getppid(), signal.SIGTERM)
            signal.sigtimedwait([], 0.5)  # until it is passed on

model = torch.nn.Linear(2, 1)
states = SaveTrainingStateCallback("states", save_every_n_steps=2, stop_on_signals=["SIGTERM"])
trainer = Trainer(model, torch.nn.MSELoss(), torch.optim.Adam(model.parameters()), [states, Strike])
samples = torch.utils.data.TensorDataset(torch.ones(40, 2), torch.ones(40, 1))
trainer.train(samples, 50, per_device_batch_size=4, resume_from="states", resume_missing="start")
"""


def test_a_killed_script_goes_on_and_a_preempted_one_ends(launch: Launch, tmp_path: Path) -> None:
    """It resumes in a process that has torch and draws of its own; SIGTERM reaches it, and its status is handed on."""
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    launched = launch(KEEP_RUNNING, str(script), "--an=option")

    assert launched.status == 75, launched.output
    starts = [line for line in launched.output.splitlines() if line.startswith("torch is there:")]
    assert [line.partition(" draws ")[0] for line in starts] == ["torch is there: True ['--an=option']"] * 2
    assert starts[0] != starts[1]
    assert "after update 4." in launched.output
    assert launched.output.count("was killed after") == 1


def test_a_script_that_is_killed_again_and_again_is_not_started_for_ever(launch: Launch, tmp_path: Path) -> None:
    """Three kills, each within seconds, are a script that needs more than the machine has."""
    script = tmp_path / "train.py"
    script.write_text("import os, signal\nprint('begins', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n")
    launched = launch(KEEP_RUNNING, str(script))

    assert launched.status == 137
    assert launched.output.count("begins") == 3
    assert "It is not started again" in launched.output
