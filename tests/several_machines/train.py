"""What the machines run: a training whose updates do not depend on the number of processes."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import Trainer, TrainerCallback
from pa_core.callbacks import SaveTrainingStateCallback

SAMPLES_PER_UPDATE = 12
NUM_SAMPLES = 40  # the last update of an epoch is smaller, and one of two processes may have less of it
NUM_EPOCHS = 12


class NoteUpdates(TrainerCallback[Any]):
    """Notes each update with the number of processes, and takes its time, so that there is a middle of the run."""

    def __init__(self, notes: Path, seconds: float) -> None:
        self._notes = notes
        self._seconds = seconds

    @override
    def on_optimizer_step_end(self, trainer: Any, update: int, **_: Any) -> None:
        if trainer.is_main_process:
            with self._notes.open("a") as notes:
                notes.write(f"{update} {trainer.num_processes}\n")
        time.sleep(self._seconds)


def main(folder: Path, *, seconds: float = 0.0, max_wait_seconds: float = 600.0) -> None:
    """Train, and leave the weights behind.

    Args:
        folder: Where states, notes and weights go.
        seconds: How long each update takes at least.
        max_wait_seconds: As for ``Trainer``.
    """
    torch.manual_seed(0)
    inputs = torch.randn(NUM_SAMPLES, 5, dtype=torch.float64)
    dataset = TensorDataset(inputs, inputs.square().sum(1, keepdim=True))
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    trainer = Trainer(
        model,
        torch.nn.MSELoss(),
        torch.optim.Adam(model.parameters(), lr=0.01),
        callbacks=[
            SaveTrainingStateCallback(folder / "states", save_every_n_steps=2, stop_on_signals=("SIGTERM",)),
            NoteUpdates(folder / "updates.txt", seconds),
        ],
        max_wait_seconds=max_wait_seconds,
    )
    trainer.train(
        dataset,
        num_epochs=NUM_EPOCHS,
        per_device_batch_size=SAMPLES_PER_UPDATE // trainer.num_processes,
        resume_from=folder / "states",
        resume_missing="start",
    )
    if trainer.is_main_process:
        torch.save(model.state_dict(), folder / "weights.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), seconds=float(sys.argv[2]), max_wait_seconds=float(sys.argv[3]))
