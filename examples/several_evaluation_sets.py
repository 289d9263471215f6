"""Evaluate on several sets.

Each set is evaluated by itself, and its name is part of the names of its metrics: the best model is chosen by
`eval_noisy_accuracy`. The shifted digits cost nothing in most epochs, as they are evaluated in every fifth one only.

    python examples/several_evaluation_sets.py
    torchrun --nproc-per-node 2 examples/several_evaluation_sets.py
    accelerate launch --mixed_precision bf16 examples/several_evaluation_sets.py

The last lines that it prints:

    clean    91.1% recognised
    noisy    82.4% recognised
    shifted  51.4% recognised
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from pa_callbacks_extra import TorchMetricsCallback
from pa_core import DEFAULT_CALLBACKS, EvaluationSet, SaveBestModelCallback, Trainer

Batch = tuple[Tensor, Tensor]


def load_data() -> tuple[TensorDataset, dict[str, TensorDataset]]:
    """Return the training digits, and three sets of 597 other ones that come with scikit-learn."""
    data, target = load_digits(return_X_y=True)
    pixels = torch.tensor(data, dtype=torch.float32).view(-1, 8, 8) / 16
    digits = torch.tensor(target)
    train, test = slice(0, 1200), slice(1200, None)
    noise = 0.3 * torch.randn(pixels[test].shape, generator=torch.Generator().manual_seed(0))
    return TensorDataset(pixels[train], digits[train]), {
        "clean": TensorDataset(pixels[test], digits[test]),
        "noisy": TensorDataset((pixels[test] + noise).clamp(0, 1), digits[test]),
        "shifted": TensorDataset(pixels[test].roll(1, dims=2), digits[test]),
    }


def main(epochs: int = 10, output: Path = Path("outputs/several_evaluation_sets")) -> None:
    """Train, load the weights that were best on noisy digits, and print how many digits of each set they recognise."""
    torch.manual_seed(0)
    train_dataset, sets = load_data()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    accuracy = MetricCollection({"accuracy": MulticlassAccuracy(num_classes=10, average="micro")})
    best = SaveBestModelCallback(output / "best.pt", watch_metric="eval_noisy_accuracy", greater_is_better=True)
    trainer = Trainer(
        model,
        loss_func=nn.CrossEntropyLoss(),
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-3),
        # Metrics come before the callbacks that print or watch them.
        callbacks=[TorchMetricsCallback(accuracy), *DEFAULT_CALLBACKS, best],
    )
    trainer.train(
        train_dataset,
        num_epochs=epochs,
        eval_dataset={**sets, "shifted": EvaluationSet(sets["shifted"], every_n_epochs=5)},
        per_device_batch_size=32,
    )
    trainer.evaluate(sets, per_device_batch_size=64)
    for name in sets:
        recognised = float(trainer.run_history.get_latest_metric(f"evaluation_{name}_accuracy"))
        trainer.print(f"{name:8} {recognised:.1%} recognised")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Evaluate on several sets of scanned digits.")
    parser.add_argument("--epochs", type=int, default=10, help="how often to go over the training digits")
    parser.add_argument("--output", type=Path, default=Path("outputs/several_evaluation_sets"), help="where it writes")
    arguments = parser.parse_args()
    main(arguments.epochs, arguments.output)
