"""Train two epochs of ten updates each, perhaps leaving as a killed process does: FOLDER KIND NUMBER_OF_UPDATES."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import PartialState
from torch import nn
from torch.optim import AdamW
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import AnyTrainer, SaveTrainingStateCallback, Trainer
from tests.support.callbacks import OfOneStart
from tests.support.sharded_models import sentences, sharded, tiny_transformer, whole_weights

SAMPLES, PER_UPDATE = 120, 12


class Leave(OfOneStart):
    """Notes the samples of each update; leaves in the step after a number of updates.

    Each start has notes of its own: they are no state of the run.
    """

    def __init__(self, file: Path, after: int) -> None:
        self.file, self.after = file, after
        self.seen: dict[int, list[int]] = {}

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        if trainer.num_updates_completed == self.after:
            self.write()
            os._exit(0)
        self.seen.setdefault(trainer.num_updates_completed, []).extend(batch[2].tolist())

    def write(self) -> None:
        """Leave a note of the samples behind."""
        self.file.write_text(json.dumps(self.seen))


class NumberedTrainer(Trainer):
    """Leaves the numbers of the samples out of the calculation."""

    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        return super().calculate_train_batch_loss(batch[:2])


def main(folder: Path, kind: str, updates: int) -> None:
    """Resume from the newest state and save one after the last update."""
    processes = PartialState(cpu=True).num_processes
    rank = dist.get_rank() if processes > 1 else 0
    model = tiny_transformer(seed=processes)
    if kind != "plain":
        model = sharded(model, replicas=2 if kind == "replicated" else 1)
    leave = Leave(folder / f"seen_{updates}_{rank}.json", updates)
    saving = SaveTrainingStateCallback(folder / "states", save_every_n_steps=updates)
    trainer = NumberedTrainer(
        model, nn.CrossEntropyLoss(), AdamW(model.parameters(), lr=0.01), callbacks=[leave, saving]
    )
    trainer.train(
        TensorDataset(*sentences(SAMPLES), torch.arange(SAMPLES)),
        2,
        per_device_batch_size=PER_UPDATE // processes,
        resume_from=folder / "states",
        resume_missing="start",
        train_dataloader_kwargs={"num_workers": 0},
    )
    leave.write()
    weights = whole_weights(trainer.get_model())
    if rank == 0:
        torch.save(weights, folder / "weights.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
