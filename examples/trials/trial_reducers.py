"""Compute metrics that are not means of batches: the digit that is recognised worst, and the median confidence.

A `MetricReducer` and a function reduce values from all processes, so the metrics cover all validation digits on any
number of processes. This file runs unchanged in one process or several:

    python examples/trials/trial_reducers.py
    accelerate launch examples/trials/trial_reducers.py
    torchrun --nproc-per-node 2 examples/trials/trial_reducers.py
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Subset, TensorDataset, random_split

import pa_trial as pytorch

Digits = tuple[Tensor, Tensor]  # pixels and labels


class RecallOfEachDigit(pytorch.MetricReducer):
    """Counts how many digits of each kind there are, and how many of them are recognised."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.recognised = torch.zeros(10, dtype=torch.int64)
        self.number = torch.zeros(10, dtype=torch.int64)

    def update(self, predicted: Tensor, labels: Tensor) -> None:
        """Count the digits of a batch."""
        self.recognised += labels[predicted == labels].cpu().bincount(minlength=10)
        self.number += labels.cpu().bincount(minlength=10)

    def per_slot_reduce(self) -> tuple[Tensor, Tensor]:
        return self.recognised, self.number

    def cross_slot_reduce(self, per_slot_metrics: Sequence[tuple[Tensor, Tensor]]) -> pytorch.Metrics:
        recognised = torch.stack([recognised for recognised, _ in per_slot_metrics]).sum(0)
        number = torch.stack([number for _, number in per_slot_metrics]).sum(0)
        recall = recognised / number
        return {"digits": number.sum(), "worst_digit": recall.argmin(), "worst_recall": recall.min()}


def median(batches: Sequence[Tensor]) -> float:
    """Return the median of all values of all batches."""
    return float(torch.cat(list(batches)).median())


class PrintMetrics(pytorch.PyTorchCallback):
    """Prints the metrics of each validation, once for all processes."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context

    def on_validation_end(self, metrics: pytorch.Metrics) -> None:
        if self.context.distributed.get_rank() == 0:
            print(
                f"Of {metrics['digits']} digits, {metrics['worst_digit']} is recognised worst: "
                f"{metrics['worst_recall']:.1%}; the median confidence is {metrics['median_confidence']:.3f}"
            )


class DigitsTrial(pytorch.PyTorchTrial[Digits]):
    """Trains a small network on scanned digits."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters(), lr=3e-3))
        self.recall = context.wrap_reducer(RecallOfEachDigit(), for_training=False)  # names its metrics itself
        self.confidence = context.wrap_reducer(median, name="median_confidence", for_training=False)
        self.training_digits, self.validation_digits = self.load_data()

    def load_data(self) -> list[Subset]:
        """Return the training and validation parts of the digits."""
        data, target = load_digits(return_X_y=True)
        dataset = TensorDataset(torch.tensor(data, dtype=torch.float32) / 16, torch.tensor(target))
        return random_split(dataset, [1500, 297], generator=torch.Generator().manual_seed(0))

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(self.training_digits, batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(self.validation_digits, batch_size=self.context.get_per_slot_batch_size())

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"print": PrintMetrics(self.context)}

    def train_batch(self, batch: Digits, epoch_idx: int, batch_idx: int) -> Tensor:
        pixels, labels = batch
        loss = functional.cross_entropy(self.model(pixels), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss

    def evaluate_batch(self, batch: Digits, batch_idx: int) -> pytorch.Metrics:
        pixels, labels = batch
        confidence, predicted = self.model(pixels).softmax(1).max(1)
        self.recall.update(predicted, labels)
        self.confidence.update(confidence.cpu())
        return {}  # the reducers have the metrics


def main(epochs: int = 5, output: Path = Path("outputs/trial_reducers")) -> None:
    """Train, and keep the last checkpoint in ``output``."""
    with pytorch.init(hparams={"global_batch_size": 32}, checkpoint_dir=output, seed=0, max_checkpoints=1) as context:
        trainer = pytorch.Trainer(DigitsTrial(context), context)
        trainer.fit(max_length=pytorch.Epoch(epochs), validation_period=pytorch.Epoch(1), checkpoint_policy="none")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on scanned digits, and find the one that is recognised worst.")
    parser.add_argument("--epochs", type=int, default=5, help="how often to go over the training digits")
    parser.add_argument("--output", type=Path, default=Path("outputs/trial_reducers"), help="where it writes")
    arguments = parser.parse_args()
    main(arguments.epochs, arguments.output)
