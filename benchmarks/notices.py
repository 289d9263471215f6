"""What it costs to ask after each update whether the run has to end.

Runs as ``python -m benchmarks.notices``. The variants take turns within one run, and processor time is measured, since
a question takes less than what the machine takes away from an update at times.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import TensorDataset
from typing_extensions import override

from benchmarks.processes import publish
from pa_core import AnyTrainer, SaveTrainingStateCallback, TerminateOnNaNCallback, Trainer, TrainerCallback

__all__ = ["microseconds"]

ROUNDS, UPDATES = 50, 1_000
NEVER = 10**9


class Quiet:
    """A notice without news."""

    def ask(self) -> None:
        """Answer nothing."""


VARIANTS: dict[str, dict[str, Any]] = {
    "without": {},
    "a_notice": {"notices": [Quiet()]},
    "a_deadline": {"deadline": timedelta(hours=4)},
    "both": {"notices": [Quiet()], "deadline": timedelta(hours=4)},
}


class Asks(TrainerCallback):
    """Calls the event that follows an update for each variant in turn, as the run does.

    Args:
        saving: The callbacks by the names of their variants.
    """

    def __init__(self, saving: dict[str, SaveTrainingStateCallback]) -> None:
        self._saving = saving
        self.microseconds: dict[str, list[float]] = {name: [] for name in saving}

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        for number in range(ROUNDS):
            names = list(self._saving)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                begun = time.process_time()
                for _ in range(UPDATES):
                    self._saving[name].on_optimizer_step_end(trainer, update=update)
                self.microseconds[name].append((time.process_time() - begun) / UPDATES * 1e6)


def microseconds() -> dict[str, float]:
    """Processor time of the event that follows an update, of each variant."""
    model, data = nn.Linear(1, 1), TensorDataset(torch.ones(1, 1), torch.ones(1, 1))
    with tempfile.TemporaryDirectory() as folder:
        saving: dict[str, SaveTrainingStateCallback] = {}
        for name, options in VARIANTS.items():
            kind: type[SaveTrainingStateCallback] = type(name, (SaveTrainingStateCallback,), {})
            saving[name] = kind(f"{folder}/{name}", save_every_n_steps=NEVER, save_at_end=False, **options)
        asks = Asks(saving)
        callbacks: list[TrainerCallback] = [TerminateOnNaNCallback(), *saving.values(), asks]
        trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks)
        trainer.train(data, 1)
    return {name: statistics.median(each) for name, each in asks.microseconds.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    publish(**microseconds())
