"""How long it takes from a kill to the first new update: milliseconds, in a process that has imported torch alone.

Runs as ``python -m benchmarks.resumes SCRIPT``, which lets another process train and save first. Each script trains the
digits, and goes on after the first epoch.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from benchmarks.processes import publish

UPDATED = list[float]()
"""When each update of this process was made."""


def note_update(*_: object) -> None:
    """Note the time of an update."""
    UPDATED.append(time.perf_counter())


def an_update(_folder: Path) -> None:
    """No state at all: what torch itself needs for a first optimizer and its update."""
    from benchmarks.loops.by_hand import train
    from benchmarks.tasks import digits

    task = digits()
    task.optimizer.register_step_post_hook(note_update)
    train(task, 1)


def by_hand(folder: Path) -> None:
    """A script with `torch.save` after each epoch, and `torch.load`."""
    from benchmarks.loops.by_hand import train
    from benchmarks.tasks import digits

    task, path = digits(), folder / "state.pt"
    task.optimizer.register_step_post_hook(note_update)
    epoch = 0
    if path.exists():
        state = torch.load(path)
        epoch = state["epoch"]
        task.model.load_state_dict(state["model"])
        task.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
    train(task, 1)
    model, optimizer = task.model.state_dict(), task.optimizer.state_dict()
    state = {"model": model, "optimizer": optimizer, "rng": torch.get_rng_state(), "epoch": epoch + 1}
    torch.save(state, path)


def ours(folder: Path) -> None:
    """A script with a `Trainer` as it comes, and training states that are saved after each epoch."""
    from benchmarks.tasks import digits
    from pa_core import DEFAULT_CALLBACKS, SaveTrainingStateCallback, Trainer

    task = digits()
    task.optimizer.register_step_post_hook(note_update)
    states = SaveTrainingStateCallback(folder, save_every_n_epochs=1)
    trainer = Trainer(task.model, task.loss_func, task.optimizer, [*DEFAULT_CALLBACKS, states])
    trainer.train(
        task.dataset,
        2 if any(folder.iterdir()) else 1,
        per_device_batch_size=task.batch_size,
        resume_from=folder,
        resume_missing="start",
    )


SCRIPTS: Mapping[str, Callable[[Path], None]] = {"by_hand": by_hand, "an_update": an_update, "ours": ours}


def main(script: str, folder: str | None = None) -> None:
    """Train in a folder, or publish how long it takes until a killed training is continued."""
    torch.set_num_threads(1)
    if folder is not None:
        SCRIPTS[script](Path(folder))
        return
    with tempfile.TemporaryDirectory() as made:
        subprocess.run([sys.executable, "-m", "benchmarks.resumes", script, made], check=True, capture_output=True)
        begun = time.perf_counter()
        SCRIPTS[script](Path(made))
    publish(**{script: (UPDATED[0] - begun) * 1e3})


if __name__ == "__main__":
    main(*sys.argv[1:])
