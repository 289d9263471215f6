"""Train once and get a finished model for each of three budgets; then train on from before the last decay.

The learning rate is kept, and brought down only before each checkpoint. The digits of 8 x 8 pixels come inside
scikit-learn, so that nothing is downloaded. It needs pa-core[examples] and pa-schedulers:

    python examples/train_with_checkpointed_decay.py
    torchrun --nproc-per-node 2 examples/train_with_checkpointed_decay.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset, random_split
from torchmetrics.classification import MulticlassAccuracy
from typing_extensions import override

from pa_core import DEFAULT_CALLBACKS, AnyTrainer, BatchOutput, Trainer, TrainerCallback
from pa_schedulers import WSDCheckpointCallback, WSDLrScheduler

Digits = Subset[tuple[Tensor, ...]]


class AccuracyCallback(TrainerCallback):
    """Records the share of digits that were recognised in each evaluation, counted over all processes."""

    def __init__(self) -> None:
        self.accuracy = MulticlassAccuracy(num_classes=10, average="micro")

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.accuracy.to(trainer.device).reset()

    @override
    def on_eval_step_end(
        self, trainer: AnyTrainer, batch: tuple[Tensor, Tensor], batch_output: BatchOutput, **kwargs: Any
    ) -> None:
        self.accuracy.update(batch_output["model_outputs"], batch[1])

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        trainer.run_history.update_metric("accuracy", self.accuracy.compute())


def load_data() -> tuple[Digits, Digits]:
    """Return the digits to train on, and those to test on."""
    digits: Any = load_digits()  # pyright: ignore[reportUnknownVariableType]  # it has no types
    pixels = torch.tensor(digits.images, dtype=torch.float32) / 16
    dataset = TensorDataset(pixels, torch.tensor(digits.target))
    train_dataset, test_dataset = random_split(dataset, [1440, 357], generator=torch.Generator().manual_seed(0))
    return train_dataset, test_dataset


def create_trainer(checkpoints: WSDCheckpointCallback) -> Trainer[nn.Module, Any, dict[str, Any], WSDLrScheduler]:
    """Return a trainer of a small network that saves before and after each decay."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    return Trainer(
        model,
        loss_func=nn.CrossEntropyLoss(),
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-3),
        callbacks=[AccuracyCallback, checkpoints, *DEFAULT_CALLBACKS],
    )


def accuracy_of(trainer: Trainer[Any, Any, Any, Any], test_dataset: Digits) -> float:
    """Return the share of the test digits that a model recognises."""
    trainer.evaluate(test_dataset, per_device_batch_size=64)
    return float(trainer.run_history.get_latest_metric("accuracy"))


def main(epochs: int = 8, output: Path = Path("outputs")) -> None:
    """Train with three checkpoints, test each of them, and train on from before the last decay for as long again."""
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
    train_dataset, test_dataset = load_data()

    trainer = create_trainer(WSDCheckpointCallback(output / "first"))
    trainer.train(
        train_dataset,
        num_epochs=epochs,
        per_device_batch_size=32,
        create_scheduler_fn=WSDLrScheduler.create_scheduler_fn(num_warmup_epochs=0.5, num_checkpoints=3),
    )
    assert trainer.scheduler is not None
    periods = trainer.scheduler.get_decay_info()
    for period in periods:
        step = period["period_end"]
        export = output / "first" / f"checkpoint_{step}_wsd_post_decay.pt"
        trainer.load_checkpoint(export, load_optimizer=False, load_scheduler=False)
        trainer.print(f"After {step} updates: {accuracy_of(trainer, test_dataset):.1%}")

    before_the_last_decay = output / "first" / f"checkpoint_{periods[-1]['pre_decay_step']}_wsd_pre_decay"
    trainer = create_trainer(WSDCheckpointCallback(output / "longer", initial_checkpoint=before_the_last_decay))
    trainer.train(
        train_dataset,
        num_epochs=epochs,
        per_device_batch_size=32,
        create_scheduler_fn=WSDLrScheduler.create_scheduler_fn(is_continuation_from_checkpoint=True),
    )
    trainer.print(f"Recognised {accuracy_of(trainer, test_dataset):.1%} of the test digits")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Train on scanned digits, with a decay before each of three checkpoints."
    )
    parser.add_argument("--epochs", type=int, default=8, help="how often to go over the training digits, each time")
    parser.add_argument("--output", type=Path, default=Path("outputs"), help="the folder for checkpoints")
    arguments = parser.parse_args()
    main(arguments.epochs, arguments.output)
