"""The Trainer of pytorch-accelerated, with its defaults; it saves no states to resume from within an epoch."""

from __future__ import annotations

from typing import Any

import torch
from accelerate.utils import set_seed
from task import BATCH_SIZE, NUM_EPOCHS, Record, Samples, Values, network
from torch import Tensor, nn

from pytorch_accelerated import Trainer


class Recorded(Trainer):
    """Records the samples of each update, and the mean of the values that are evaluated."""

    record: Record
    updates: int = 0

    def calculate_train_batch_loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> dict[str, Any]:
        """Compute the loss of a batch."""
        self.record.step(self.updates, batch[2])
        self.updates += 1
        return super().calculate_train_batch_loss(batch[:2])

    def calculate_eval_batch_loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> dict[str, Any]:
        """Return the mean of the values as the loss."""
        return {"loss": batch[1].mean(), "model_outputs": batch[1], "batch_size": len(batch[1])}


def main() -> None:
    """Train, evaluate, and write down what was seen."""
    record = Record()
    set_seed(0)
    model = network()
    trainer = Recorded(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), callbacks=[])
    trainer.record = record
    trainer.train(
        Samples(record),
        num_epochs=NUM_EPOCHS,
        per_device_batch_size=BATCH_SIZE,
        train_dataloader_kwargs={"num_workers": 0},
    )
    mean = None
    if record.evaluates:
        trainer.evaluate(Values(), per_device_batch_size=2, dataloader_kwargs={"num_workers": 0})
        mean = trainer.run_history.get_latest_metric("evaluation_loss")
    record.finish(trainer.get_model(), mean)


if __name__ == "__main__":
    main()
