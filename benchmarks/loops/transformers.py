"""The trainer of transformers, for a module that returns its loss, with nothing reported elsewhere."""

from __future__ import annotations

import importlib
import tempfile
from typing import Any, cast

from torch import Tensor, nn
from torch.utils.data import Dataset
from typing_extensions import override

from benchmarks.tasks import Task

__all__ = ["train"]


class WithLoss(nn.Module):
    """Calculates the loss within its forward pass, as this trainer wants it."""

    def __init__(self, network: nn.Module, loss_func: nn.Module) -> None:
        super().__init__()
        self.network, self.loss_func = network, loss_func

    @override
    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return loss and logits."""
        logits = self.network(inputs)
        return {"loss": self.loss_func(logits, labels), "logits": logits}


class Named(Dataset[dict[str, Any]]):
    """The pairs of a dataset, as dictionaries."""

    def __init__(self, pairs: Dataset[Any]) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(cast("Any", self.pairs))

    @override
    def __getitem__(self, index: int) -> dict[str, Any]:
        inputs, targets = self.pairs[index]
        return {"inputs": inputs, "labels": targets}


def train(task: Task, num_epochs: int) -> None:
    """Train on any number of processes."""
    transformers: Any = importlib.import_module("transformers")
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            num_train_epochs=num_epochs,
            per_device_train_batch_size=task.batch_size,
            gradient_accumulation_steps=task.accumulation,
            dataloader_num_workers=task.num_workers,
            dataloader_persistent_workers=task.num_workers > 0,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
        )
        trainer = transformers.Trainer(
            WithLoss(task.model, task.loss_func),
            arguments,
            train_dataset=Named(task.dataset),
            optimizers=(task.optimizer, None),
        )
        trainer.train()
