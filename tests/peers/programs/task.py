"""The task that each library trains: it writes down which samples each update saw, and can be killed."""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.utils.data import Dataset

NUM_EPOCHS, SAMPLES_PER_UPDATE, UPDATES_BETWEEN_STATES = 3, 16, 3
RANK, WORLD_SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
BATCH_SIZE = SAMPLES_PER_UPDATE // WORLD_SIZE
EVAL_VALUES = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 100.0)


class Samples(Dataset[tuple[Tensor, Tensor, int]]):
    """Samples with their numbers, perhaps augmented by noise of torch's global generator."""

    def __init__(self, record: Record) -> None:
        self._size = record.num_samples
        self._is_augmented = record.is_augmented

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor, int]:
        features = torch.tensor([number % 3, number % 5, number % 7, 1.0])
        noise = torch.randn(4) if self._is_augmented else torch.zeros(4)
        return features + 0.1 * noise, features.sum(0, keepdim=True), number


class Values(Dataset[tuple[Tensor, Tensor, int]]):
    """Samples to evaluate, whose mean is known."""

    def __len__(self) -> int:
        return len(EVAL_VALUES)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor, int]:
        return torch.zeros(4), torch.tensor([EVAL_VALUES[number]]), number


def network() -> nn.Linear:
    """Return a model that predicts zero."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


class Record:
    """What the command line asks for, and what the program writes into its folder."""

    def __init__(self) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("folder", type=Path)
        parser.add_argument("--samples", type=int, default=50)
        parser.add_argument("--die-after", type=int, default=None, help="the update after which the process is killed")
        parser.add_argument("--resume", action="store_true")
        parser.add_argument("--evaluate", action="store_true")
        parser.add_argument("--augmented", action="store_true")
        arguments = parser.parse_args()
        self.folder: Path = arguments.folder
        self.is_resumed: bool = arguments.resume
        self.evaluates: bool = arguments.evaluate
        self.is_augmented: bool = arguments.augmented
        self.num_samples: int = arguments.samples
        self.states: str = str(self.folder / "states")
        self._die_after: int | None = arguments.die_after
        self.folder.mkdir(exist_ok=True)

    def step(self, update: int, numbers: Tensor) -> None:
        """Write down the samples of a batch, of which each update has one; kill the process if it is time.

        Args:
            update: How many updates were made before this one.
            numbers: The numbers of the samples.
        """
        if self._die_after is not None and update >= self._die_after:
            os.kill(os.getpid(), signal.SIGKILL)
        with (self.folder / f"seen-{RANK}.jsonl").open("a") as file:
            file.write(json.dumps({"update": update, "numbers": sorted(numbers.tolist())}) + "\n")

    def finish(self, model: nn.Linear, eval_mean: float | None = None) -> None:
        """Write down how it ended.

        Args:
            model: The trained model.
            eval_mean: The mean of the values that were evaluated, as the library reports it.
        """
        if RANK == 0:
            weights = [*model.weight.detach().flatten().tolist(), *model.bias.detach().tolist()]
            ended = {"weights": [value.hex() for value in weights], "eval_mean": eval_mean}
            (self.folder / "end.json").write_text(json.dumps(ended))
        if distributed.is_initialized():
            distributed.barrier()
            os._exit(0)  # threads of the process group sometimes abort while the interpreter ends
