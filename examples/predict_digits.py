"""Run inference, and write a file of predictions.

`predict` writes each sample exactly once, in the order of the dataset, for any number of processes and any length of
the last batch. Run the script again after a kill, and it predicts only the missing pieces.

    python examples/predict_digits.py
    torchrun --nproc-per-node 2 examples/predict_digits.py
    accelerate launch --mixed_precision bf16 examples/predict_digits.py

The last lines that it prints:

    digits.csv has 300 predictions, 97.0% of them are right.
    The least certain one is sample 82: true 1, predicted 8, with a certainty of 25.8%.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset, random_split

from pa_core import Trainer

Batch = tuple[Tensor, Tensor]


class DigitsTrainer(Trainer):
    """A trainer that predicts the most probable digit. Without the override, predictions are the model's outputs."""

    def predict_batch(self, batch: Batch) -> dict[str, Tensor]:
        pixels, digits = batch
        logits: Tensor = self.model(pixels)
        certainty, guesses = logits.float().softmax(dim=1).max(dim=1)
        return {"digit": digits, "guess": guesses, "certainty": certainty}


def load_data() -> list[Subset]:
    """Return the training and test parts of the digits that come with scikit-learn."""
    data, target = load_digits(return_X_y=True)
    pixels = torch.tensor(data, dtype=torch.float32).view(-1, 8, 8) / 16
    dataset = TensorDataset(pixels, torch.tensor(target))
    return random_split(dataset, [1497, 300], generator=torch.Generator().manual_seed(0))


def describe(path: Path) -> str:
    """Read a file of predictions, and say how good they are."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    right = sum(row["digit"] == row["guess"] for row in rows)
    worst = min(range(len(rows)), key=lambda index: float(rows[index]["certainty"]))
    row = rows[worst]
    return (
        f"{path.name} has {len(rows)} predictions, {right / len(rows):.1%} of them are right.\n"
        f"The least certain one is sample {worst}: true {row['digit']}, predicted {row['guess']}, "
        f"with a certainty of {float(row['certainty']):.1%}."
    )


def main(epochs: int = 10, output: Path = Path("outputs/predict_digits")) -> None:
    """Train, write predictions of the test digits, and print how good they are."""
    torch.manual_seed(0)
    train_dataset, test_dataset = load_data()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    trainer = DigitsTrainer(model, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters(), lr=3e-3))
    trainer.train(train_dataset, epochs, per_device_batch_size=32)

    # For a few predictions, `for predictions in trainer.predict(test_dataset)` yields them batch after batch.
    path = trainer.predict(test_dataset, per_device_batch_size=64, write=output / "digits.csv")
    if trainer.is_main_process:
        print(describe(path))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Predict scanned digits, and write the predictions to a file.")
    parser.add_argument("--epochs", type=int, default=10, help="how often to go over the training digits")
    parser.add_argument("--output", type=Path, default=Path("outputs/predict_digits"), help="where it writes")
    arguments = parser.parse_args()
    main(arguments.epochs, arguments.output)
