"""What saving a training state costs: how long it holds up the training, and what a step costs while one is written.

Runs as ``python -m benchmarks.saving FIGURE MEGABYTES``: ``waits`` publishes the milliseconds that training waits
for a save at once and for one in the background, in the step after it too, ``p50`` or another percentile the
microseconds of a step. The megabytes are of weights that are only saved; with ``waits_trained``, of trained ones.
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

from benchmarks.processes import publish
from pa_core import AnyTrainer, Trainer, TrainerCallback

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


class Trained(nn.Sequential):
    """A network with as many weights, all of them trained."""

    def __init__(self, megabytes: int) -> None:
        hidden = (nn.Linear(1024, 1024) for _ in range(megabytes // 4))
        super().__init__(nn.Linear(64, 1024), *hidden, nn.Linear(1024, 10))


class SaveInTurn(TrainerCallback):
    """Saves at once and in the background in turn, and takes the time of each step."""

    def __init__(self, folder: Path, steps_between: int) -> None:
        self.folder = folder
        self.steps_between = steps_between
        self.saves: dict[str, list[float]] = {"at_once": [], "in_the_background": []}
        self.steps: dict[str, list[float]] = {"undisturbed": [], "while_writing": []}
        self._asked: str | None = None
        self._in_step_after = False
        self._written = True
        self._last = time.perf_counter()

    @override
    def on_train_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        now = time.perf_counter()
        if self._asked is not None and not self._in_step_after:
            self._in_step_after = True  # which may wait for what the save has left to be done
            return
        if self._asked is not None:
            self.saves[self._asked].append(now - self._last)
            self._asked, self._in_step_after = None, False
        elif trainer.num_updates_completed > self.steps_between:
            self.steps["undisturbed" if self._written else "while_writing"].append(now - self._last)
        self._last = now

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        if update % self.steps_between == 0 and self._written and self._asked is None:
            self._asked = list(self.saves)[update // self.steps_between % 2]
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
    is_trained = figure.endswith("_trained")
    model = Trained(megabytes) if is_trained else Ballast(megabytes)
    trained = model if isinstance(model, Trained) else model.network
    data = TensorDataset(torch.randn(3200, 64), torch.randint(10, (3200,)))
    with tempfile.TemporaryDirectory() as folder:
        callback = SaveInTurn(Path(folder), 5 if is_trained else STEPS_BETWEEN)
        optimizer = SGD(trained.parameters(), lr=0.01)
        trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[callback])
        while min(map(len, callback.saves.values())) <= ROUNDS + 1:
            trainer.train(data, 1 if is_trained else 20, per_device_batch_size=32)
    if figure.startswith("waits"):
        # The first saves in the background make room for the copy, and find out what has to be copied at once.
        step = statistics.median(callback.steps["undisturbed"])
        publish(**{kind: (statistics.median(times[2:]) - step) * 1e3 for kind, times in callback.saves.items()})
    else:
        percent = int(figure.removeprefix("p"))
        publish(**{kind: percentile(times, percent) * 1e6 for kind, times in callback.steps.items()})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
