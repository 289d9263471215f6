"""A script that was written for pytorch-accelerated, and runs as it is: `pa-compat` provides the imports.

It trains a small network on scanned digits with label smoothing in training only, a cosine schedule, averaged weights,
early stopping, and metrics in a callback. Nothing but the imports of `pytorch_accelerated` decides which library it
runs on; the last line that it prints says which one that was. It needs pa-compat[examples], and runs unchanged in one
process or several, in full or mixed precision:

    python examples/porting/from_pytorch_accelerated.py
    accelerate launch --mixed_precision bf16 examples/porting/from_pytorch_accelerated.py
    torchrun --nproc-per-node 2 examples/porting/from_pytorch_accelerated.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset, random_split
from torchmetrics import Accuracy, MetricCollection, Recall

from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import (
    EarlyStoppingCallback,
    LogMetricsCallback,
    ModelEmaCallback,
    MoveModulesToDeviceCallback,
    PrintProgressCallback,
    TerminateOnNaNCallback,
    TrainerCallback,
)
from pytorch_accelerated.schedulers import CosineLrScheduler

NUM_CLASSES = 10


class DigitsTrainer(Trainer):
    """Trains with smoothed labels and evaluates without, so that the evaluation loss says how sure the model is."""

    def __init__(self, *args: Any, eval_loss_func: nn.Module, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.eval_loss_func = eval_loss_func

    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        pixels, digits = batch
        with torch.no_grad():
            logits = self.model(pixels)
            loss = self.eval_loss_func(logits, digits)
        return {"loss": loss, "model_outputs": logits, "batch_size": pixels.size(0)}


class ClassificationMetrics(TrainerCallback):
    """Accuracy and recall of each evaluation, over all processes."""

    def __init__(self) -> None:
        self.metrics = MetricCollection(
            {
                "accuracy": Accuracy(task="multiclass", num_classes=NUM_CLASSES),
                "recall": Recall(task="multiclass", num_classes=NUM_CLASSES, average="macro"),
            }
        )

    def on_eval_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
        self.metrics.to(trainer.device).reset()

    def on_eval_step_end(self, trainer: Any, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self.metrics.update(batch_output["model_outputs"].argmax(dim=-1), batch[1])

    def on_eval_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
        for name, value in self.metrics.compute().items():
            trainer.run_history.update_metric(name, value.cpu())


def load_data() -> list[Subset[tuple[Tensor, ...]]]:
    """Return the training, evaluation and test parts of the digits."""
    digits = load_digits()
    pixels = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    dataset = TensorDataset(pixels, torch.tensor(digits.target))
    return random_split(dataset, [1200, 297, 300], generator=torch.Generator().manual_seed(0))


def create_model() -> nn.Sequential:
    """Return a small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, NUM_CLASSES),
    )


def main(epochs: int = 12, output: Path = Path("outputs/from_pytorch_accelerated")) -> None:
    """Train, keep the best averaged weights in ``output``, and print their accuracy on the test digits."""
    torch.manual_seed(0)
    train_dataset, eval_dataset, test_dataset = load_data()
    model = create_model()
    averaged_weights = output / "averaged_digits.pt"
    trainer = DigitsTrainer(
        model,
        loss_func=nn.CrossEntropyLoss(label_smoothing=0.1),
        eval_loss_func=nn.CrossEntropyLoss(),
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
        callbacks=[
            MoveModulesToDeviceCallback,
            TerminateOnNaNCallback,
            PrintProgressCallback,
            ClassificationMetrics,
            ModelEmaCallback(decay=0.95, save_path=str(averaged_weights), callbacks=[ClassificationMetrics]),
            LogMetricsCallback,
            EarlyStoppingCallback(early_stopping_patience=4, watch_metric="ema_model_eval_loss_epoch"),
        ],
    )
    trainer.train(
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        num_epochs=epochs,
        per_device_batch_size=32,
        create_scheduler_fn=CosineLrScheduler.create_scheduler_fn(num_warmup_epochs=1, num_cooldown_epochs=1),
    )
    trainer.load_checkpoint(str(averaged_weights), load_optimizer=False)
    trainer.evaluate(test_dataset, per_device_batch_size=64)
    accuracy = float(trainer.run_history.get_latest_metric("accuracy"))
    trainer.print(f"Recognised {accuracy:.1%} of the test digits with averaged weights")
    trainer.print(f"Trained by {Trainer.__module__}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small network on scanned digits.")
    parser.add_argument("--epochs", type=int, default=12, help="how often to go over the training digits")
    parser.add_argument("--output", type=Path, default=Path("outputs/from_pytorch_accelerated"), help="the folder for the best average")
    arguments = parser.parse_args()
    main(arguments.epochs, arguments.output)
