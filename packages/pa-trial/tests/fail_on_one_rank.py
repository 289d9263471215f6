"""A trial that fails on the second of two ranks; takes a folder for checkpoints and the name of the exception."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from typing_extensions import override

from pa_trial import Batch, InvalidHP, PyTorchCallback
from pa_trial.collectives import rank
from tests.support.trials import TinyTrial, fit

FAILURES = {"OSError": OSError, "InvalidHP": InvalidHP}


class TellsOfShutdown(PyTorchCallback):
    """Prints when the trial shuts down."""

    @override
    def on_trial_shutdown(self) -> None:
        sys.stdout.write(f"rank {rank()} shuts down\n")


class Fails(TinyTrial):
    """Fails in the third batch, in a thread of control of which nobody else knows."""

    @override
    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        return {"tells": TellsOfShutdown()}

    @override
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        if batch_idx == 2 and rank() == 1:
            raise FAILURES[sys.argv[2]]("a disk of this machine is gone")
        return super().train_batch(batch, epoch_idx, batch_idx)


if __name__ == "__main__":
    try:
        fit(Fails, Path(sys.argv[1]), max_length=Batch(9))
    except (OSError, SystemExit):
        sys.stdout.write("caught, and going on for ever\n")
        while True:
            pass
