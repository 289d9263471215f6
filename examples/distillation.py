"""Let a large network teach a small one: a student of scanned digits that learns from its teacher's doubts too.

The teacher is trained by the trainer, and frozen. The student learns in a loop of the script's own, from the digits and
from what the teacher makes of them; the teacher is placed on the device, and in the training states, with it. This file
runs unchanged in one process or several:

    python examples/distillation.py
    torchrun --nproc-per-node 2 examples/distillation.py

It prints at the end:

    The student recognised 93.0% of the test digits
    The teacher recognised 97.3% of the test digits
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Subset, TensorDataset, random_split

from pa_core import Run, Trainer

TEMPERATURE = 4.0


def load_data() -> list[Subset[tuple[Tensor, ...]]]:
    """Return the digits for the teacher, the few for the student, and those to test with."""
    digits: Any = load_digits()  # pyright: ignore[reportUnknownVariableType]  # it has no types
    pixels = torch.tensor(digits.data, dtype=torch.float32) / 16
    dataset = TensorDataset(pixels, torch.tensor(digits.target))
    return random_split(dataset, [1197, 300, 300], generator=torch.Generator().manual_seed(0))


def train_teacher(dataset: Subset[tuple[Tensor, ...]]) -> nn.Module:
    """Return a large network that knows the digits, frozen."""
    teacher = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(teacher.parameters(), lr=1e-3)
    trainer = Trainer(teacher, nn.CrossEntropyLoss(), optimizer, callbacks=[])
    trainer.train(dataset, num_epochs=20, per_device_batch_size=32)
    return teacher.eval().requires_grad_(False)


def main(epochs: int = 40) -> None:
    """Train a teacher and its student, and print what both recognise."""
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
    many_digits, few_digits, test_digits = load_data()
    teacher = train_teacher(many_digits)
    student = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    run = Run(
        {"student": student, "teacher": teacher},
        {"student": torch.optim.AdamW(student.parameters(), lr=1e-2)},
        few_digits,
        num_epochs=epochs,
        per_device_batch_size=25,
    )
    with run:
        for pixels, digits in run.batches():
            with torch.no_grad():
                taught = (teacher(pixels) / TEMPERATURE).softmax(1)
            logits = student(pixels)
            run.backward(
                functional.cross_entropy(logits, digits)
                + TEMPERATURE**2 * functional.cross_entropy(logits / TEMPERATURE, taught)
            )
            run.step()
        for pixels, digits in run.evaluation_batches(test_digits, per_device_batch_size=100, name="test"):
            for name, model in run.models.items():
                run.log(name, (model(pixels).argmax(1) == digits).float().mean())
    for name in run.models:
        accuracy = float(run.run_history.get_latest_metric(f"test_{name}_epoch"))
        run.print(f"The {name} recognised {accuracy:.1%} of the test digits")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small network on scanned digits with a teacher.")
    parser.add_argument("--epochs", type=int, default=40, help="how often the student goes over its digits")
    main(parser.parse_args().epochs)
