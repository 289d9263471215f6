"""Write a custom logger: JSON lines that pandas reads.

`LogMetricsCallback` finds out which metrics were recorded and when; a logger only says where they go. It is called on
every process, and this one writes on the first alone. Training states keep the length of the file, so a killed and
resumed run has each line once, in the order of the epochs. Delete outputs/custom_logger to start over.

    python examples/custom_logger.py
    torchrun --nproc-per-node 2 examples/custom_logger.py
    accelerate launch --mixed_precision bf16 examples/custom_logger.py
    python -c "import pandas; print(pandas.read_json('outputs/custom_logger/metrics.jsonl', lines=True))"

The last lines that it prints:

    metrics.jsonl has 8 lines, the last of them:
    {"epoch": 4, "update": 152, "eval_loss_epoch": 0.2288687698655392}
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Subset, TensorDataset, random_split

from pa_core import DEFAULT_CALLBACKS, AnyTrainer, LogMetricsCallback, SaveTrainingStateCallback, Trainer


class LogToFile(LogMetricsCallback):
    """Writes metrics to a file, as a JSON object with the epoch and the number of updates in each line.

    Args:
        path: The file; what an earlier run has written there is replaced, unless the run resumes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0

    def log_metrics(self, trainer: AnyTrainer, metrics: dict[str, float]) -> None:
        if not trainer.is_main_process:
            return
        line = {"epoch": trainer.run_history.current_epoch, "update": trainer.num_updates_completed, **metrics}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        with self.path.open("r+") as file:
            file.seek(self.size)
            file.write(json.dumps(line) + "\n")
            self.size = file.tell()
            file.truncate()

    def state_dict(self) -> dict[str, Any]:
        """Return what a training state keeps of this callback."""
        return {"size": self.size}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where the file ended when the state was saved."""
        self.size = state_dict["size"]


def load_data() -> list[Subset]:
    """Return the training and evaluation parts of the digits that come with scikit-learn."""
    data, target = load_digits(return_X_y=True)
    pixels = torch.tensor(data, dtype=torch.float32).view(-1, 8, 8) / 16
    dataset = TensorDataset(pixels, torch.tensor(target))
    return random_split(dataset, [1200, 597], generator=torch.Generator().manual_seed(0))


def main(epochs: int = 4, output: Path = Path("outputs/custom_logger")) -> None:
    """Train, and print the last line of the file."""
    torch.manual_seed(0)
    train_dataset, eval_dataset = load_data()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    path = output / "metrics.jsonl"
    trainer = Trainer(
        model,
        loss_func=nn.CrossEntropyLoss(),
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-3),
        # A state keeps what the logger has written so far, so the logger comes first.
        callbacks=[*DEFAULT_CALLBACKS, LogToFile(path), SaveTrainingStateCallback(output / "states", 1)],
    )
    trainer.train(
        train_dataset,
        num_epochs=epochs,
        eval_dataset=eval_dataset,
        per_device_batch_size=32,
        resume_from=output / "states",
        resume_missing="start",
    )
    if trainer.is_main_process:
        lines = path.read_text().splitlines()
        print(f"{path.name} has {len(lines)} lines, the last of them:\n{lines[-1]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on scanned digits, and write metrics to a JSON-lines file.")
    parser.add_argument("--epochs", type=int, default=4, help="how often to go over the training digits")
    parser.add_argument("--output", type=Path, default=Path("outputs/custom_logger"), help="where it writes")
    arguments = parser.parse_args()
    main(arguments.epochs, arguments.output)
