"""What saving a training state costs: how long it holds up the training, and what a step costs while one is written.

Runs as ``python -m tests.benchmarks.saving FIGURE MEGABYTES``: ``waits`` publishes the milliseconds that training waits
for a save at once and for one in the background, ``p50`` or another percentile the microseconds of a step.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import AnyTrainer, Trainer, TrainerCallback
from tests.benchmarks.processes import publish

ROUNDS = 7
STEPS_BETWEEN = 40


class Ballast(nn.Module):
    """A small network beside weights that only have to be saved."""

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
        self.ballast = nn.ParameterList(nn.Parameter(torch.randn(2**18)) for _ in range(megabytes))
        self.ballast.requires_grad_(False)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.network(inputs)
        return logits


class SaveInTurn(TrainerCallback):
    """Saves at once and in the background in turn, and takes the time of each step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.saves: dict[str, list[float]] = {"at_once": [], "in_the_background": []}
        self.steps: dict[str, list[float]] = {"undisturbed": [], "while_writing": []}
        self._asked: str | None = None
        self._written = True
        self._last = time.perf_counter()

    @override
    def on_train_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        now = time.perf_counter()
        if self._asked is not None:
            self.saves[self._asked].append(now - self._last)
            self._asked = None
        elif trainer.num_updates_completed > STEPS_BETWEEN:
            self.steps["undisturbed" if self._written else "while_writing"].append(now - self._last)
        self._last = now

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        if update % STEPS_BETWEEN == 0 and self._written:
            self._asked = list(self.saves)[update // STEPS_BETWEEN % 2]
            self._written = False
            trainer.save_training_state(
                self.folder / "state", asynchronous=self._asked == "in_the_background", on_saved=self._note
            )
            self._last = time.perf_counter()

    def _note(self, _directory: Path) -> None:
        self._written = True


def percentile(values: list[float], percent: int) -> float:
    """The value below which so many percent of all lie."""
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def main(figure: str, megabytes: int) -> None:
    """Train, save in turn, and publish."""
    torch.set_num_threads(1)
    model = Ballast(megabytes)
    data = TensorDataset(torch.randn(3200, 64), torch.randint(10, (3200,)))
    with tempfile.TemporaryDirectory() as folder:
        callback = SaveInTurn(Path(folder))
        optimizer = SGD(model.network.parameters(), lr=0.01)
        trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[callback])
        while len(callback.saves["in_the_background"]) <= ROUNDS:
            trainer.train(data, 20, per_device_batch_size=32)
    if figure == "waits":
        # The first save in the background makes room for its copy, which later ones reuse.
        publish(**{kind: statistics.median(times[1:]) * 1e3 for kind, times in callback.saves.items()})
    else:
        percent = int(figure.removeprefix("p"))
        publish(**{kind: percentile(times, percent) * 1e6 for kind, times in callback.steps.items()})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
