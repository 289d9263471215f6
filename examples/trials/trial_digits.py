"""Recognise scanned digits in the style of Determined's first tutorial: with one changed import, and no cluster.

The 1,797 digits of 8 x 8 pixels come inside scikit-learn, so that nothing is downloaded. This file runs unchanged in
one process or several:

    python examples/trials/trial_digits.py
    accelerate launch examples/trials/trial_digits.py
    torchrun --nproc-per-node 2 examples/trials/trial_digits.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Subset, TensorDataset, random_split

import pa_trial as pytorch

HPARAMS = {"global_batch_size": 32, "learning_rate": 3e-3, "n_filters1": 16, "n_filters2": 32, "dropout": 0.25}

Digits = tuple[Tensor, Tensor]  # images and labels


def load_data() -> list[Subset]:
    """Return the training and validation parts of the digits."""
    data, target = load_digits(return_X_y=True)
    images = torch.tensor(data, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    dataset = TensorDataset(images, torch.tensor(target))
    return random_split(dataset, [1500, 297], generator=torch.Generator().manual_seed(0))


def build_model(n_filters1: int, n_filters2: int, dropout: float) -> nn.Module:
    """Return a small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(1, n_filters1, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(n_filters1, n_filters2, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(n_filters2 * 16, 10),
    )


class PrintAccuracy(pytorch.PyTorchCallback):
    """Prints the accuracy of each validation, once for all processes."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context

    def on_validation_end(self, metrics: pytorch.Metrics) -> None:
        if self.context.distributed.get_rank() == 0:
            epoch = self.context.current_train_epoch() + 1
            print(f"Epoch {epoch}: recognised {metrics['accuracy']:.1%} of the validation digits")


class DigitsTrial(pytorch.PyTorchTrial[Digits]):
    """Trains the network on digits, and validates it on others."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.batch_size = context.get_per_slot_batch_size()
        self.training_digits, self.validation_digits = load_data()
        network = build_model(*(context.get_hparam(name) for name in ("n_filters1", "n_filters2", "dropout")))
        self.model = context.wrap_model(network)
        self.optimizer = context.wrap_optimizer(
            torch.optim.AdamW(self.model.parameters(), lr=context.get_hparam("learning_rate"))
        )

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(self.training_digits, batch_size=self.batch_size, shuffle=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(self.validation_digits, batch_size=self.batch_size)

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"accuracy": PrintAccuracy(self.context)}

    def train_batch(self, batch: Digits, epoch_idx: int, batch_idx: int) -> pytorch.Metrics:
        images, labels = batch
        loss = functional.cross_entropy(self.model(images), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Digits, batch_idx: int) -> pytorch.Metrics:
        images, labels = batch
        logits = self.model(images)
        accuracy = (logits.argmax(1) == labels).float().mean()
        return {"validation_loss": functional.cross_entropy(logits, labels), "accuracy": accuracy}


def main(epochs: int = 5, output: Path = Path("outputs/trial_digits")) -> None:
    """Train; keep the checkpoint with the best accuracy, and the last one, in ``output``."""
    with pytorch.init(
        hparams=HPARAMS, checkpoint_dir=output, seed=0, metric="accuracy", smaller_is_better=False, max_checkpoints=1
    ) as context:
        trainer = pytorch.Trainer(DigitsTrial(context), context)
        trainer.fit(
            max_length=pytorch.Epoch(epochs),
            validation_period=pytorch.Epoch(1),
            checkpoint_policy="best",
            weigh_by_records=True,  # each digit counts the same, even in the short last batch
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small convolutional network on scanned digits.")
    parser.add_argument("--epochs", type=int, default=5, help="how often to go over the training digits")
    parser.add_argument("--output", type=Path, default=Path("outputs/trial_digits"), help="where it writes")
    arguments = parser.parse_args()
    main(arguments.epochs, arguments.output)
