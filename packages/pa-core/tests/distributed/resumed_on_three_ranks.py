"""A script: trains with and without an interruption, and prints how many weights differ."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.optim import SGD

from pa_core import Trainer
from pa_core.testing import make_classification


def train(folder: Path, updates: int, *, resumes: bool = False) -> list[torch.Tensor]:
    """The weights after some updates; a state is saved there."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 97), nn.Tanh(), nn.Linear(97, 61), nn.Tanh(), nn.Linear(61, 3))
    trainer = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.5), callbacks=[])
    trainer.train(
        make_classification(96),
        num_epochs=1,
        per_device_batch_size=4,
        max_num_train_steps=updates,
        resume_from=folder if resumes else None,
    )
    trainer.save_training_state(folder)
    return [parameter.detach() for parameter in model.parameters()]


def main() -> None:
    """Make six updates at once, and as three and three."""
    at_once = train(Path("whole"), 6)
    train(Path("half"), 3)
    resumed = train(Path("half"), 6, resumes=True)
    different = sum(int((one != other).sum()) for one, other in zip(at_once, resumed, strict=True))
    sys.stdout.write(f"{different} of {sum(one.numel() for one in at_once)} weights differ\n")


if __name__ == "__main__":
    main()
