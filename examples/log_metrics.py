"""Follow a training in TensorBoard: metrics of torchmetrics, loss, learning rate and speed.

    pip install 'pa-callbacks-extra[torchmetrics]' scikit-learn tensorboard
    python examples/log_metrics.py
    tensorboard --logdir outputs/runs

This file runs unchanged in one process or several: every metric counts the digits of all of them once, and the first
one writes:

    torchrun --nproc-per-node 2 examples/log_metrics.py
"""

from __future__ import annotations

import argparse
import math
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import Subset, TensorDataset, random_split
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from pa_callbacks_extra import TorchMetricsCallback, TrackerCallback
from pa_core import DEFAULT_CALLBACKS, BatchOutput, Trainer, TrainerPlaceholderValues

Batch: TypeAlias = tuple[Tensor, Tensor]


def load_data() -> list[Subset[tuple[Tensor, ...]]]:
    """Return the training, evaluation and test parts of the digits that come with scikit-learn."""
    digits: Any = load_digits()  # pyright: ignore[reportUnknownVariableType]  # it has no types
    pixels = torch.tensor(digits.images, dtype=torch.float32) / 16
    dataset = TensorDataset(pixels, torch.tensor(digits.target))
    return random_split(dataset, [1200, 297, 300], generator=torch.Generator().manual_seed(0))


def recognised(batch: Batch, output: BatchOutput) -> Tensor:
    """Return the digits that the model takes those of a batch for."""
    logits: Tensor = output["model_outputs"]
    return logits.argmax(dim=1)


def main(epochs: int = 5, output: Path = Path("outputs")) -> None:
    """Train, write curves below ``output``, and print the accuracy on the test digits."""
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
    train_dataset, eval_dataset, test_dataset = load_data()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    metrics = TorchMetricsCallback[Batch, BatchOutput](
        MetricCollection(
            {
                "accuracy": MulticlassAccuracy(num_classes=10, average="micro"),
                "f1": MulticlassF1Score(num_classes=10),
            }
        ),
        predictions=recognised,
        in_training=True,
    )
    track = TrackerCallback(
        "tensorboard",
        project_name="digits",
        logging_dir=output / "runs",
        config={"model": type(model).__name__, "hidden": 64},
        every_n_updates=10,
    )
    trainer = Trainer(
        model,
        loss_func=nn.CrossEntropyLoss(),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        # Callbacks are called in this order: metrics are recorded before they are printed and sent.
        callbacks=[metrics, *DEFAULT_CALLBACKS, track],
    )
    trainer.train(
        train_dataset,
        num_epochs=epochs,
        eval_dataset=eval_dataset,
        per_device_batch_size=16,
        gradient_clip_norm=math.inf,  # clips nothing, but has the norm measured
        create_scheduler_fn=partial(
            CosineAnnealingLR,
            T_max=TrainerPlaceholderValues.NUM_EPOCHS * TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH,
        ),
    )
    trainer.evaluate(test_dataset, per_device_batch_size=64)
    accuracy = float(trainer.run_history.get_latest_metric("evaluation_accuracy"))
    trainer.print(f"Recognised {accuracy:.1%} of the test digits; tensorboard --logdir {output / 'runs'} shows the way")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small network on digits, and write curves for TensorBoard.")
    parser.add_argument("--epochs", type=int, default=5, help="how often to go over the training digits")
    parser.add_argument("--output", type=Path, default=Path("outputs"), help="the folder for the curves")
    arguments = parser.parse_args()
    main(arguments.epochs, arguments.output)
