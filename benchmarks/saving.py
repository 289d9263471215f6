"""What saving a training state costs: how long it holds up the training, and what a step costs while one is written.

Runs as ``python -m benchmarks.saving frozen MEGABYTES``, of weights that are only saved, ``trained MEGABYTES``, or
``transformer``. Published are the milliseconds that training waits for a save at once and for one in the background, in
the step after it too, and percentiles of the microseconds of a step.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import TensorDataset
from typing_extensions import override

from benchmarks.processes import percentile, publish
from benchmarks.tasks import DEVICE, IS_DRY, TASKS, Task
from pa_core import AnyTrainer, Trainer, TrainerCallback

KINDS = ("at_once", "in_the_background")


def frozen(megabytes: str) -> Task:
    """A small network beside so many weights that only have to be saved."""
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    for number in range(int(megabytes)):
        model.register_parameter(f"ballast_{number}", nn.Parameter(torch.randn(2**18), requires_grad=False))
    return _task(model, num_epochs=20)


def trained(megabytes: str) -> Task:
    """A network with so many weights, all of them trained."""
    hidden = (nn.Linear(1024, 1024) for _ in range(int(megabytes) // 4))
    model = nn.Sequential(nn.Linear(64, 1024), *hidden, nn.Linear(1024, 10))
    return _task(model, num_epochs=1)


def _task(model: nn.Module, num_epochs: int) -> Task:
    data = TensorDataset(torch.randn(3200, 64), torch.randint(10, (3200,)))
    optimizer = SGD([weights for weights in model.parameters() if weights.requires_grad], lr=0.01)
    return Task(model, optimizer, nn.CrossEntropyLoss(), data, batch_size=32, num_epochs=num_epochs)


class SaveInTurn(TrainerCallback):
    """Saves at once and in the background in turn, and takes the time of each step."""

    def __init__(self, folder: Path, steps_between: int) -> None:
        self.folder = folder
        self.steps_between = steps_between
        self.saves: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self.steps: dict[str, list[float]] = {"undisturbed": [], "while_writing": []}
        self._asked: str | None = None
        self._in_step_after = False
        self._written = True
        self._last = time.perf_counter()

    @override
    def on_train_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        now = computed()
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
            self._asked = KINDS[sum(map(len, self.saves.values())) % 2]
            self._written = False
            trainer.save_training_state(
                self.folder / "state", asynchronous=self._asked == "in_the_background", on_saved=self._note
            )
            self._last = computed()

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self._asked, self._in_step_after = None, False  # the step after would be that of another run

    def _note(self, _directory: Path) -> None:
        self._written = True


def computed() -> float:
    """The time at which the device has computed what it was asked to; copies may still be under way."""
    if DEVICE.type == "cuda":
        torch.cuda.current_stream().synchronize()
    return time.perf_counter()


TRAINED: dict[str, tuple[Callable[..., Task], int, int]] = {
    "frozen": (frozen, 40, 7),
    "trained": (trained, 5, 7),
    "transformer": (TASKS["transformer"], 5, 1 if IS_DRY else 3),
}
"""What is trained, the steps between two saves, and how many of each kind are measured."""


def main(what: str, *arguments: str) -> None:
    """Train, save in turn, and publish."""
    torch.set_num_threads(1)
    make_task, steps_between, rounds = TRAINED[what]
    task = make_task(*arguments)
    with tempfile.TemporaryDirectory() as folder:
        callback = SaveInTurn(Path(folder), steps_between)
        trainer = Trainer(task.model, task.loss_func, task.optimizer, [callback], mixed_precision=task.mixed_precision)
        while min(map(len, callback.saves.values())) < rounds + 2:
            trainer.train(
                task.dataset,
                task.num_epochs,
                per_device_batch_size=task.batch_size,
                train_dataloader_kwargs={"num_workers": 0},
            )
    # The first saves in the background make room for the copy, and find out what has to be copied at once.
    step = statistics.median(callback.steps["undisturbed"])
    waits = {kind: (statistics.median(times[2:]) - step) * 1e3 for kind, times in callback.saves.items()}
    publish("waits", **waits, the_first_in_the_background=(callback.saves[KINDS[1]][0] - step) * 1e3)
    for percent in (50, 99):
        publish(
            f"p{percent}",
            **{kind: percentile(times or [math.nan], percent) * 1e6 for kind, times in callback.steps.items()},
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
