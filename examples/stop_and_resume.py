"""Kill a run, resume it, and get identical weights.

Press Ctrl-C, or send SIGTERM as a batch system does: the script finishes the current update, saves a training state and
exits with status 75. Or kill it with `kill -9`: the updates since the newest state are repeated. Either way the same
command resumes with the samples, shifts and dropout that would have come next, and the final weights have the same
checksum as in a run that was never stopped.

    python examples/stop_and_resume.py
    torchrun --nproc-per-node 2 examples/stop_and_resume.py
    accelerate launch --mixed_precision bf16 examples/stop_and_resume.py

The checksum depends on the machine and on which of these commands you use. Delete outputs/stop_and_resume to start
over. The last line that it prints:

    After 1,520 updates the checksum of the weights is 70504509
"""

from __future__ import annotations

import argparse
import random
import zlib
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset

from pa_core import DEFAULT_CALLBACKS, SaveTrainingStateCallback, Trainer


class ShiftedDigits(Dataset):
    """The digits that come with scikit-learn, shifted at random each time."""

    def __init__(self) -> None:
        data, target = load_digits(return_X_y=True)
        self.images = torch.tensor(data, dtype=torch.float32).view(-1, 1, 8, 8) / 16
        self.digits: list[int] = target.tolist()

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        shift = random.choice([-1, 0, 1]), random.choice([-1, 0, 1])
        return self.images[index].roll(shift, dims=(1, 2)), self.digits[index]


def make_model() -> nn.Sequential:
    """Return a network with everything that a resumed run can get wrong: batch norm, dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(16 * 6 * 6, 10),
    )


def checksum(model: nn.Module) -> int:
    """Return a number that changes with any bit of the weights and statistics."""
    number = 0
    for tensor in model.state_dict().values():
        number = zlib.crc32(tensor.cpu().numpy().tobytes(), number)
    return number


def main(epochs: int = 40, output: Path = Path("outputs/stop_and_resume")) -> None:
    """Train or resume, and print the checksum of the weights."""
    torch.manual_seed(0)
    model = make_model()
    save_states = SaveTrainingStateCallback(
        output, save_every_n_steps=20, max_checkpoints=2, stop_on_signals=("SIGINT", "SIGTERM")
    )
    trainer = Trainer(
        model,
        loss_func=nn.CrossEntropyLoss(),
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-3),
        callbacks=[*DEFAULT_CALLBACKS, save_states],
    )
    trainer.train(
        ShiftedDigits(),
        num_epochs=epochs,
        per_device_batch_size=48,
        resume_from=output,
        resume_missing="start",
    )
    updates = trainer.num_updates_completed
    trainer.print(f"After {updates:,} updates the checksum of the weights is {checksum(model)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on digits, in a run that can be stopped at any time.")
    parser.add_argument("--epochs", type=int, default=40, help="how often to go over the digits")
    parser.add_argument("--output", type=Path, default=Path("outputs/stop_and_resume"), help="the folder of the states")
    arguments = parser.parse_args()
    main(arguments.epochs, arguments.output)
