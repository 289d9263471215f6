"""Record custom metrics in a subclass.

A metric of torchmetrics is an attribute of the trainer: the evaluation step updates it, and the end of the evaluation
records it. What is merely a mean of something that a step computes needs no metric: `self.log` is enough. Both are
counted over all processes, printed with the losses, and part of training states.

    python examples/metrics_in_a_subclass.py
    torchrun --nproc-per-node 2 examples/metrics_in_a_subclass.py
    accelerate launch --mixed_precision bf16 examples/metrics_in_a_subclass.py

The last lines that it prints:

    digits recognised           96.3%
    mean over the ten digits    96.3%
    certainty of the model      95.7%
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset, random_split
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy
from typing_extensions import override

from pa_core import BatchOutput, Trainer

Batch = tuple[Tensor, Tensor]


class DigitsTrainer(Trainer[nn.Module, Batch, BatchOutput]):
    """A trainer that knows how well digits are recognised.

    Args:
        model: Maps pixels to the logits of ten digits.
        optimizer: The optimizer of the model.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(model, nn.CrossEntropyLoss(), optimizer)
        # Metrics are modules: MoveModulesToDeviceCallback, one of the default callbacks, moves them to the device.
        self.metrics = MetricCollection(
            {
                "recognised": MulticlassAccuracy(num_classes=10, average="micro"),
                "recognised_per_digit": MulticlassAccuracy(num_classes=10, average="macro"),
            }
        )

    @override
    def calculate_eval_batch_loss(self, batch: Batch) -> BatchOutput:
        output = super().calculate_eval_batch_loss(batch)
        logits: Tensor = output["model_outputs"]
        self.metrics.update(logits, batch[1])
        self.log("certainty", logits.float().softmax(dim=1).amax(dim=1).mean())
        return output

    @override
    def eval_epoch_start(self) -> None:
        super().eval_epoch_start()
        self.metrics.reset()

    @override
    def eval_epoch_end(self) -> None:
        for name, value in self.metrics.compute().items():
            self.run_history.update_metric(name, value)


def load_data() -> list[Subset[tuple[Tensor, ...]]]:
    """Return the training, evaluation and test parts of the digits that come with scikit-learn."""
    data, target = load_digits(return_X_y=True)
    pixels = torch.tensor(data, dtype=torch.float32).view(-1, 8, 8) / 16
    dataset = TensorDataset(pixels, torch.tensor(target))
    return random_split(dataset, [1200, 297, 300], generator=torch.Generator().manual_seed(0))


def main(epochs: int = 15) -> None:
    """Train, and print the metrics of the test digits."""
    torch.manual_seed(0)
    train_dataset, eval_dataset, test_dataset = load_data()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    trainer = DigitsTrainer(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
    trainer.train(train_dataset, epochs, eval_dataset, per_device_batch_size=32)
    trainer.evaluate(test_dataset, per_device_batch_size=64)
    history = trainer.run_history
    trainer.print(f"digits recognised           {float(history.get_latest_metric('recognised')):.1%}")
    trainer.print(f"mean over the ten digits    {float(history.get_latest_metric('recognised_per_digit')):.1%}")
    trainer.print(f"certainty of the model      {float(history.get_latest_metric('evaluation_certainty')):.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Record custom metrics in a subclass of the trainer.")
    parser.add_argument("--epochs", type=int, default=15, help="how often to go over the training digits")
    main(parser.parse_args().epochs)
