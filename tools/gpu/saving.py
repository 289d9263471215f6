"""How long training waits for a training state that is saved at once, or in the background."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim import AdamW
from typing_extensions import override

from pa_core import AnyTrainer, StopTrainingError, Trainer, TrainerCallback
from tools.gpu.figures import publish
from tools.gpu.loops import quietly
from tools.gpu.setting import Setting
from tools.gpu.tasks import TASKS
from tools.gpu.window import synchronize

__all__ = ["measure"]

BLOCK, ROUNDS = 10, 5
SAVE_AT = 2
MAX_SECONDS = 30.0
KINDS = ("no save", "in the background", "no save again", "at once")


class SaveInBlocks(TrainerCallback):
    """Takes the time of blocks of updates, in some of which a state is saved, and ends the run after some rounds.

    Attributes:
        seconds: The time of each block by its kind, after a first round that does not count.
        first_seconds: That of the first save in the background, which makes room for the copies.
    """

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder, self.rounds = folder, rounds
        self.seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self.first_seconds = 0.0
        self._block = -1
        self._started = self._began = time.perf_counter()
        self._written = threading.Event()
        self._written.set()

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        place = update % BLOCK
        if place == 0:
            self._end_block()
            self._begin_block()
        elif (
            place == SAVE_AT
            and self._block >= 0
            and not (kind := KINDS[self._block % len(KINDS)]).startswith("no save")
        ):
            self._written.clear()
            trainer.save_training_state(
                self.folder / "state",
                asynchronous=kind == "in the background",
                on_saved=lambda _directory: self._written.set(),
            )

    def _end_block(self) -> None:
        synchronize()
        seconds = time.perf_counter() - self._started
        if self._block >= len(KINDS):
            self.seconds[KINDS[self._block % len(KINDS)]].append(seconds)
        elif self._block == KINDS.index("in the background"):
            self.first_seconds = seconds

    def _begin_block(self) -> None:
        if not self._written.wait(timeout=MAX_SECONDS):
            raise StopTrainingError("a state was not written in time")
        is_late = time.perf_counter() - self._began > MAX_SECONDS
        if self._block + 1 == (self.rounds + 1) * len(KINDS) or (is_late and all(self.seconds.values())):
            raise StopTrainingError("enough was measured")
        self._block += 1
        synchronize()
        self._started = time.perf_counter()


def measure(setting: Setting) -> None:
    """Train GPT-2 with AdamW, and compare blocks of updates with a save in them with blocks without one."""
    rounds = 1 if setting.is_small else ROUNDS
    task = TASKS["gpt2"](setting)
    torch.manual_seed(0)
    with setting.device:
        model = task.make_model()
    optimizer = AdamW(model.parameters(), lr=1e-4)
    blocks = (rounds + 1) * len(KINDS) + 3
    with tempfile.TemporaryDirectory() as folder, quietly():
        saver = SaveInBlocks(Path(folder), rounds)
        trainer = Trainer(model, task.loss_func, optimizer, callbacks=[saver], mixed_precision="bf16")
        data = task.make_data(blocks * BLOCK * task.batch_size)
        trainer.train(data, 1, per_device_batch_size=task.batch_size, train_dataloader_kwargs={"num_workers": 0})
        megabytes = sum(path.stat().st_size for path in (Path(folder) / "state").rglob("*")) / 1e6
    undisturbed = statistics.median(saver.seconds["no save"] + saver.seconds["no save again"])
    spread = max(saver.seconds["no save"] + saver.seconds["no save again"]) - undisturbed
    note = f"blocks of {BLOCK} updates with a save, less those without; those differ by {spread * 1e3:.1f} ms"
    for kind in ("in the background", "at once"):
        stall = statistics.median(saver.seconds[kind]) - undisturbed
        publish(f"training waits for a state of {megabytes:.0f} MB, {kind}", stall * 1e3, "ms", note=note)
    first = saver.first_seconds - undisturbed
    publish(f"training waits for the first state of {megabytes:.0f} MB, in the background", first * 1e3, "ms")
    publish(f"an update of {task.name} meanwhile, without a save", undisturbed / BLOCK * 1e3, "ms")
