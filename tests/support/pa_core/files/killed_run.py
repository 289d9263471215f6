"""Train two epochs on files, perhaps until killed: FOLDER NAME WORKERS NUMBER_OF_UPDATES."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD
from typing_extensions import override

from pa_core import AnyTrainer, SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_data.files import JsonLines, ShardedFiles

PER_UPDATE, EPOCHS = 12, 2


def with_draws(line: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """A sample: its number and a random number, and what is to be learnt."""
    number = torch.tensor(float(line["id"]), dtype=torch.float64)
    drawn = torch.rand((), dtype=torch.float64)
    return torch.stack([number, drawn]), (number / 100 + drawn)[None]


def sharded_files(pattern: str, index: Path | None = None) -> ShardedFiles[tuple[Tensor, Tensor]]:
    """The dataset of the runs."""
    return ShardedFiles(pattern, JsonLines(), transform=with_draws, window=20, lanes=2, block=4, index=index)


class NoteSamples(TrainerCallback):
    """Writes down the samples and draws of each update; has the process killed, or the run fail, in a given one."""

    def __init__(self, file: Path, after: int = -1, kills: bool = False) -> None:
        self.file, self.after, self.kills = file, after, kills

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        if trainer.num_updates_completed == self.after:
            if self.kills:
                os.kill(os.getpid(), signal.SIGKILL)
            raise InterruptedError("the power is gone")
        with self.file.open("a") as notes:
            notes.write(json.dumps([trainer.num_updates_completed, batch[0].tolist()]) + "\n")


def train(data: ShardedFiles[Any], folder: Path, processes: int, workers: int, note: NoteSamples) -> Tensor:
    """Resume from the newest state, or start; return the weights."""
    torch.manual_seed(3)
    model = nn.Linear(2, 1).double()
    saving = SaveTrainingStateCallback(folder / "states", save_every_n_steps=3)
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=1e-5), callbacks=[note, saving])
    trainer.train(
        data,
        EPOCHS,
        per_device_batch_size=PER_UPDATE // processes,
        resume_from=folder / "states",
        resume_missing="start",
        train_dataloader_kwargs={"num_workers": workers},
    )
    return model.weight.detach().clone()


def samples_of_updates(folder: Path) -> dict[int, list[list[float]]]:
    """The samples and draws of each update on all processes; an update that was done twice was the same."""
    seen: dict[int, list[list[float]]] = {}
    for run in sorted({file.name.rsplit("_", 1)[0] for file in folder.glob("seen_*")}):
        of_run: dict[int, list[list[float]]] = {}
        for file in folder.glob(f"{run}_*"):
            for line in file.read_text().splitlines():
                update, samples = json.loads(line)
                of_run.setdefault(update, []).extend(samples)
        last = max(of_run, default=0)
        for update, samples in of_run.items():
            is_whole = update < last or len(samples) == PER_UPDATE  # in the last one some processes were killed
            if is_whole:
                assert seen.setdefault(update, sorted(samples)) == sorted(samples)
    return seen


def main(folder: Path, name: str, workers: int, after: int) -> None:
    """Train as one of the processes of a run."""
    rank, processes = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    note = NoteSamples(folder / f"seen_{name}_{rank}", after, kills=rank == processes - 1)
    data = sharded_files(str(folder.parent / "data" / "*.jsonl"), folder.parent / "index")
    weights = train(data, folder, processes, workers, note)
    if rank == 0:
        torch.save(weights, folder / "weights.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
