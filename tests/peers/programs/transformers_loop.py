"""The Trainer of transformers, with its defaults."""

from __future__ import annotations

from typing import Any

import torch
from task import BATCH_SIZE, NUM_EPOCHS, UPDATES_BETWEEN_STATES, Record, Samples, Values, network
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments, set_seed


class WithLoss(nn.Module):
    """A model that computes its own loss, as those of transformers do."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self.layer = network()
        self.trainer: Trainer | None = None
        self._record = record

    def forward(self, features: Tensor, labels: Tensor, numbers: Tensor) -> dict[str, Tensor]:
        """Return the loss and the targets."""
        if self.training:
            assert self.trainer is not None
            self._record.step(self.trainer.state.global_step, numbers)
        return {"loss": nn.functional.mse_loss(self.layer(features), labels), "logits": labels.clone()}


def collate(samples: list[tuple[Tensor, Tensor, int]]) -> dict[str, Tensor]:
    """Return a batch as a dictionary."""
    features, targets, numbers = zip(*samples, strict=True)
    return {"features": torch.stack(features), "labels": torch.stack(targets), "numbers": torch.tensor(numbers)}


def mean_of_values(prediction: Any) -> dict[str, float]:
    """Return the mean of what was evaluated."""
    return {"mean": float(torch.as_tensor(prediction.label_ids).mean())}


def main() -> None:
    """Train, evaluate, and write down what was seen."""
    record = Record()
    set_seed(0)
    model = WithLoss(record)
    arguments = TrainingArguments(
        record.states,
        use_cpu=True,
        num_train_epochs=NUM_EPOCHS,
        per_device_train_batch_size=BATCH_SIZE,
        per_device_eval_batch_size=2,
        learning_rate=0.01,
        save_steps=UPDATES_BETWEEN_STATES,
        remove_unused_columns=False,
        label_names=["labels"],
        report_to="none",
        seed=0,
    )
    trainer = Trainer(
        model,
        arguments,
        data_collator=collate,
        train_dataset=Samples(record),
        eval_dataset=Values(),
        compute_metrics=mean_of_values,
    )
    model.trainer = trainer
    trainer.train(resume_from_checkpoint=record.is_resumed)
    mean = trainer.evaluate()["eval_mean"] if record.evaluates else None
    record.finish(model.layer, mean)


if __name__ == "__main__":
    main()
