"""Write the training loop yourself, and keep what the trainer guarantees: recognise scanned digits.

The loop below is the script's own. The order of the samples, the gradients of an update over several batches and
processes, metrics, callbacks and training states come from the run. Interrupt it and start it again: it resumes where
it was. This file runs unchanged in one process or several, in full or mixed precision:

    python examples/own_loop.py
    accelerate launch --mixed_precision bf16 examples/own_loop.py
    torchrun --nproc-per-node 2 examples/own_loop.py
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import Subset, TensorDataset, random_split

from pa_core import Run, SaveTrainingStateCallback, TrainerPlaceholderValues


def load_data() -> list[Subset[tuple[Tensor, ...]]]:
    """Return the training, evaluation and test parts of the digits."""
    digits: Any = load_digits()  # pyright: ignore[reportUnknownVariableType]  # it has no types
    pixels = torch.tensor(digits.data, dtype=torch.float32) / 16
    dataset = TensorDataset(pixels, torch.tensor(digits.target))
    return random_split(dataset, [1200, 297, 300], generator=torch.Generator().manual_seed(0))


def main(epochs: int = 20, output: Path = Path("outputs")) -> None:
    """Train, keep training states in ``output``, and print the share of the test digits that are recognised."""
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
    train_dataset, eval_dataset, test_dataset = load_data()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))
    run = Run(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        train_dataset,
        num_epochs=epochs,
        per_device_batch_size=16,
        gradient_accumulation_steps=2,
        gradient_clip_norm=1.0,
        create_scheduler_fn=partial(
            OneCycleLR,
            max_lr=1e-2,
            epochs=TrainerPlaceholderValues.NUM_EPOCHS,
            steps_per_epoch=TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH,
        ),
        callbacks=[SaveTrainingStateCallback(output / "states", save_every_n_epochs=1, max_checkpoints=2)],
        resume_from=output / "states",
        resume_missing="start",
    )

    def evaluate(dataset: Subset[tuple[Tensor, ...]], name: str) -> float:
        """Return the share of the digits that are recognised, each counted once, over all processes."""
        for pixels, digits in run.evaluation_batches(dataset, per_device_batch_size=64, name=name):
            logits = model(pixels)
            run.log("loss", functional.cross_entropy(logits, digits))
            run.log("accuracy", (logits.argmax(1) == digits).float().mean())
        return float(run.run_history.get_latest_metric(f"{name}_accuracy_epoch"))

    with run:
        for epoch in run.epochs():
            for update in run.updates():
                for pixels, digits in update:
                    update.backward(functional.cross_entropy(model(pixels), digits))
                update.step()
            accuracy = evaluate(eval_dataset, "eval")
            loss = run.run_history.get_latest_metric("train_loss_epoch")
            run.print(f"Epoch {epoch + 1}: loss {loss:.3f}, {accuracy:.1%} of the evaluation digits recognised")
        run.print(f"Recognised {evaluate(test_dataset, 'test'):.1%} of the test digits")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small network on scanned digits, in a loop of your own.")
    parser.add_argument("--epochs", type=int, default=20, help="how often to go over the training digits")
    parser.add_argument("--output", type=Path, default=Path("outputs"), help="the folder for the training states")
    arguments = parser.parse_args()
    main(arguments.epochs, arguments.output)
