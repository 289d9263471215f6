"""Lightning, as its documentation starts: a module with `training_step`, and a trainer with its defaults.

In mixed precision it does without progress bar, logger and checkpoints, as nothing should wait for the device.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from typing import Any

from benchmarks.tasks import DEVICE, Task, training_loader

__all__ = ["train"]


def train(task: Task, num_epochs: int) -> None:
    """Train on any number of processes."""
    pl: Any = importlib.import_module("lightning")

    class Module(pl.LightningModule):  # type: ignore[misc]  # its class is not known to the checker
        def __init__(self) -> None:
            super().__init__()
            self.network = task.model

        def training_step(self, batch: Any, _batch_idx: int) -> Any:
            inputs, targets = batch
            loss = task.loss_func(self.network(inputs), targets)
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return task.optimizer

    processes = int(os.environ.get("WORLD_SIZE", "1"))
    loader = training_loader(task)
    settings: dict[str, Any] = {}
    if task.mixed_precision != "no":
        names = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        settings = {"precision": f"{task.mixed_precision}-mixed", **dict.fromkeys(names, False)}
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            accelerator="gpu" if DEVICE.type == "cuda" else "cpu",
            devices=processes,
            strategy="ddp" if processes > 1 else "auto",
            max_epochs=num_epochs,
            accumulate_grad_batches=task.accumulation,
            default_root_dir=folder,
            **settings,
        )
        trainer.fit(Module(), loader)
