"""A script that trains in each order, and writes down what each process had in each update."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD
from typing_extensions import override

from pa_core import AnyTrainer, Trainer, TrainerCallback, distributed, gather_objects
from tests.support.drawing import Drawing
from tests.support.every_order import BATCHES_PER_UPDATE, NUM_SAMPLES, ORDERS, SAMPLES_PER_UPDATE, makes_batches

NUM_EPOCHS = 2


class TrainsOnDraws(Trainer[nn.Linear, Tensor]):
    """Learns something from samples that are numbers."""

    @override
    def calculate_train_batch_loss(self, batch: Tensor) -> dict[str, Any]:
        outputs = self.model(batch[:, 1:].float())
        return {"loss": outputs.square().mean(), "model_outputs": outputs, "batch_size": len(batch)}


class Samples(TrainerCallback):
    """Notes what this process trains on, with the number of the update."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[list[float]]]] = []

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self.batches.append((trainer.num_updates_completed, batch.tolist()))


def main() -> None:
    """Train in each order, and let the first process write what all had."""
    result: dict[str, Any] = {}
    for name, order in ORDERS.items():
        samples, model = Samples(), nn.Linear(3, 1)
        trainer = TrainsOnDraws(model, None, SGD(model.parameters(), lr=0.01), callbacks=[samples])
        sizes: dict[str, Any] = {}
        if makes_batches(order):
            sizes["gradient_accumulation_steps"] = BATCHES_PER_UPDATE // distributed.num_processes()
        else:
            sizes["per_device_batch_size"] = SAMPLES_PER_UPDATE // distributed.num_processes()
        workers = {"num_workers": 0}
        trainer.train(Drawing(NUM_SAMPLES), NUM_EPOCHS, order=order, train_dataloader_kwargs=workers, **sizes)
        of_ranks = gather_objects(samples.batches)
        result[name] = {"seed": trainer.run_config.seed, "batches_of_ranks": of_ranks}
    if distributed.rank() == 0:
        Path("trained.json").write_text(json.dumps(result))


if __name__ == "__main__":
    torch.manual_seed(5)
    main()
