"""Train on imbalanced classes.

Of the digits 3, 5 and 8 only ten scans each are kept for training, 30 of 867 samples. Shuffled as they come, the
network hardly learns them. `ClassBalanced` takes equally many samples of each digit: the rare ones come again and
again, each time shifted at random by up to a pixel. It is an order: which samples an epoch has, and in which order,
depends neither on the number of processes and workers nor on interruptions.

    python examples/imbalanced_digits.py
    torchrun --nproc-per-node 2 examples/imbalanced_digits.py
    accelerate launch --mixed_precision bf16 examples/imbalanced_digits.py

The last lines that it prints:

    Shuffled: recognised 0.0% of the rare digits, 90.5% of the others
    ClassBalanced: recognised 71.0% of the rare digits, 87.2% of the others
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from pa_core import Trainer
from pa_data.orders import ClassBalanced, Order, Shuffled

RARE = torch.tensor([3, 5, 8])
NUM_RARE = 10
NUM_TRAINING = 1200


class ShiftedDigits(Dataset):
    """Scanned digits, moved by up to one pixel in each direction, differently each time."""

    def __init__(self, pixels: Tensor, digits: Tensor) -> None:
        self.pixels = pixels
        self.digits = digits

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        down, right = (int(number) for number in torch.randint(-1, 2, (2,)))
        return self.pixels[index].roll((down, right), (0, 1)), self.digits[index]


class DigitsTrainer(Trainer):
    """A trainer that also records which share of the digits is recognised."""

    def calculate_eval_batch_loss(self, batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
        output = super().calculate_eval_batch_loss(batch)
        self.log("accuracy", (output["model_outputs"].argmax(dim=1) == batch[1]).float().mean())
        return output


def load_data() -> tuple[ShiftedDigits, dict[str, TensorDataset]]:
    """Return digits to train on, with few 3, 5 and 8, and other ones to test on, the rare and the common apart."""
    data, target = load_digits(return_X_y=True)
    pixels, names = torch.tensor(data, dtype=torch.float32).view(-1, 8, 8) / 16, torch.tensor(target)
    is_test, is_rare = torch.arange(len(names)) >= NUM_TRAINING, torch.isin(names, RARE)
    is_kept = ~is_test
    for rare in RARE:
        is_kept[(names[:NUM_TRAINING] == rare).nonzero()[NUM_RARE:]] = False
    chosen = {"rare": is_test & is_rare, "common": is_test & ~is_rare}
    tests = {name: TensorDataset(pixels[those], names[those]) for name, those in chosen.items()}
    return ShiftedDigits(pixels[is_kept], names[is_kept]), tests


def train(order: Order, data: ShiftedDigits, tests: dict[str, TensorDataset], epochs: int) -> Trainer:
    """Train in this order, and evaluate on both sets of test digits."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    trainer = DigitsTrainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[])
    trainer.train(data, num_epochs=epochs, per_device_batch_size=32, order=order)
    trainer.evaluate(tests, per_device_batch_size=100)
    return trainer


def main(epochs: int = 5) -> None:
    """Train in both orders, for equally many updates, and print what is recognised."""
    data, tests = load_data()
    for order in (Shuffled(), ClassBalanced(data.digits, num_samples=len(data))):
        trainer = train(order, data, tests, epochs)
        rare, common = (trainer.run_history.get_latest_metric(f"evaluation_{name}_accuracy") for name in tests)
        trainer.print(f"{type(order).__name__}: recognised {rare:.1%} of the rare digits, {common:.1%} of the others")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on scanned digits of which some are rare.")
    parser.add_argument("--epochs", type=int, default=5, help="how often to go over the training digits")
    main(**vars(parser.parse_args()))
