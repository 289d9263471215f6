"""A script that sends each update to a tracker and saves training states, until it is killed; it resumes by itself."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from typing import Any

import torch
from torch import nn
from torch.optim import SGD
from typing_extensions import override

from pa_callbacks_extra import TrackerCallback
from pa_core import AnyTrainer, SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_core.testing import make_regression

UPDATES_PER_EPOCH = 20
EPOCHS = 3


class Pace(TrainerCallback):
    """Has updates take their time, and kills the process in one of them."""

    def __init__(self, seconds: float, kill_in: int) -> None:
        self.seconds = seconds
        self.kill_in = kill_in

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        time.sleep(self.seconds)
        if update == self.kill_in:
            os.kill(os.getpid(), signal.SIGKILL)


def main(tracker: str, arguments: str, seconds: float, kill_in: int) -> None:
    """Train, from the newest state if there is one."""
    torch.default_generator.manual_seed(0)
    model = nn.Linear(4, 1)
    track = TrackerCallback(tracker, "digits", every_n_updates=1, init_kwargs={tracker: json.loads(arguments)})
    save = SaveTrainingStateCallback("states", save_every_n_steps=5)
    trainer = Trainer(
        model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[track, save, Pace(seconds, kill_in)]
    )
    data = make_regression(2 * UPDATES_PER_EPOCH)
    trainer.train(data, EPOCHS, data, per_device_batch_size=2, resume_from="states", resume_missing="start")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("tracker")
    parser.add_argument("arguments")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--kill-in", type=int, default=0)
    main(**vars(parser.parse_args()))
