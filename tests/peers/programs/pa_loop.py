"""The Trainer of pa-core, with its defaults."""

from __future__ import annotations

from typing import Any

import torch
from task import BATCH_SIZE, NUM_EPOCHS, UPDATES_BETWEEN_STATES, Record, Samples, Values, network
from torch import Tensor, nn
from typing_extensions import override

from pa_core import SaveTrainingStateCallback, Trainer


class Recorded(Trainer):
    """Records the samples of each update, and the mean of the values that are evaluated."""

    record: Record

    @override
    def calculate_train_batch_loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Any:
        self.record.step(self.num_updates_completed, batch[2])
        return super().calculate_train_batch_loss(batch[:2])

    @override
    def calculate_eval_batch_loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Any:
        return {"loss": batch[1].mean(), "model_outputs": batch[1], "batch_size": len(batch[1])}


def main() -> None:
    """Train, evaluate, and write down what was seen."""
    record = Record()
    model = network()
    trainer = Recorded(
        model,
        nn.MSELoss(),
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        callbacks=[SaveTrainingStateCallback(record.states, save_every_n_steps=UPDATES_BETWEEN_STATES)],
        cpu=True,
    )
    trainer.record = record
    trainer.train(
        Samples(record),
        num_epochs=NUM_EPOCHS,
        per_device_batch_size=BATCH_SIZE,
        resume_from=record.states if record.is_resumed else None,
    )
    mean = trainer.evaluate(Values(), per_device_batch_size=2)["evaluation_loss"] if record.evaluates else None
    record.finish(trainer.get_model(), mean)


if __name__ == "__main__":
    main()
