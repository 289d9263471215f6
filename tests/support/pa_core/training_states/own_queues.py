"""Runs in which each process has buffers of its own; as a script, trains in a folder and prints those of rank zero."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

from pa_core import SaveTrainingStateCallback, TrainerCallback
from pa_core.distributed import num_processes
from tests.support.pa_core.training_states import script_states as scripts


class WithOwnQueue(scripts.WithTeacher):
    """A queue and a centre of what each process has computed, beside a teacher."""

    def __init__(self, *callbacks: TrainerCallback, size: int = 8) -> None:
        super().__init__(*callbacks)
        self.loss_func: Any = scripts.CentredInPlace()
        queue = scripts.Queue().eval()
        queue.register_buffer("keys", torch.zeros(size))
        self.add_module("queue", queue)

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        queue: Any = self.modules["queue"]
        queue.keys[int(queue.at)] = output["loss"].detach()
        queue.at.add_(1).remainder_(8)
        output["loss"] = output["loss"] / (1.0 + queue.keys.square().sum())
        return output

    def kept(self) -> list[list[float]]:
        """What decides later steps: on this process, and weights of all."""
        queue: Any = self.modules["queue"]
        return [queue.keys[:8].tolist(), self.loss_func.centre.tolist(), next(self.model.parameters()).tolist()]


def train(folder: Path, *callbacks: TrainerCallback, size: int = 8) -> WithOwnQueue:
    """Train, or go on."""
    saving = SaveTrainingStateCallback(folder, save_every_n_steps=1)
    trainer = WithOwnQueue(*callbacks, saving, size=size)
    batch_size = 4 // num_processes()
    trainer.train(scripts.data(), 2, per_device_batch_size=batch_size, resume_from=folder, resume_missing="start")
    return trainer


if __name__ == "__main__":
    trained = train(Path(sys.argv[1]))
    trained.print("kept", json.dumps(trained.kept()))
