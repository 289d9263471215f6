"""Launches of examples that several tests look at, each made once."""

from __future__ import annotations

import fcntl
import json
from dataclasses import dataclass
from pathlib import Path

from tests.examples.ways import launch_example

__all__ = ["LAUNCHES", "Arguments", "Ended", "SharedLaunches"]


@dataclass(frozen=True)
class Arguments:
    """With which an example ends soon.

    Attributes:
        usual: Of most launches.
        two_ranks: Of those with two ranks, if others.
        beside_torchvision: Whether it needs a package that imports torchvision.
        fresh: Whether it needs new interpreters: forks would share the temporary folder of a package.
    """

    usual: tuple[str, ...] = ("--epochs=1",)
    two_ranks: tuple[str, ...] | None = None
    beside_torchvision: bool = False
    fresh: bool = False

    def of(self, way: str) -> tuple[str, ...]:
        """Those of one of the `WAYS`."""
        return self.two_ranks if self.two_ranks and "two ranks" in way else self.usual


LAUNCHES = {
    "train_digits": Arguments(two_ranks=("--epochs=10",)),
    "metrics_in_a_subclass": Arguments(),
    "several_evaluation_sets": Arguments(("--epochs=3",)),
    "custom_logger": Arguments(("--epochs=3",)),
    "custom_event": Arguments(),
    "predict_digits": Arguments(("--epochs=2",)),
    "export_digits": Arguments(("--epochs=2",)),
    "stop_and_resume": Arguments(("--epochs=3",)),
    "train_from_config": Arguments(),
    "schedule_with_decays": Arguments(("--epochs=4",)),
    "progressive_resizing": Arguments(("--epochs=2",)),
    "imbalanced_digits": Arguments(),
    "average_weights": Arguments(("--epochs=12",), two_ranks=("--epochs=2",)),
    "tune_with_optuna": Arguments(("--epochs=1", "--trials=2")),
    "cross_validation": Arguments(("--epochs=1",)),
    "image_folder": Arguments(beside_torchvision=True),
    "detect_digits": Arguments(("--epochs=2",)),
    "finetune_timm": Arguments(two_ranks=("--epochs=2",), beside_torchvision=True),
    "finetune_transformers": Arguments(beside_torchvision=True),
    "lora": Arguments(("--epochs=2",), beside_torchvision=True),
    "classify_texts": Arguments(beside_torchvision=True, fresh=True),
    "character_transformer": Arguments(),
    "shard_with_checkpointing": Arguments(),
    "vae": Arguments(("--epochs=2",)),
    "gan": Arguments(two_ranks=("--epochs=30",)),
    "distillation": Arguments(two_ranks=("--epochs=10",)),
    "match_captions": Arguments(("--epochs=2",)),
    "truncated_bptt": Arguments(),
    "ppo": Arguments(("--epochs=2",)),
    "replay_buffer": Arguments(("--epochs=4",)),
}
"""From the first steps to special tasks, as the index has them."""


@dataclass(frozen=True)
class Ended:
    """What an example left behind: what it printed, and the folder that it ran in."""

    output: str
    folder: Path


@dataclass(frozen=True)
class SharedLaunches:
    """Launches an example as `LAUNCHES` says, or returns what came of it when another test did. Use `shared_launch`.

    Attributes:
        folder: A new folder of this run of pytest, one for all of its processes.
    """

    folder: Path

    def __call__(self, name: str, way: str) -> Ended:
        """Return what came of a launch, which has to succeed.

        Args:
            name: The example.
            way: How it is launched; one of `WAYS`.
        """
        place = self.folder / f"{name}, {way}"
        folder, ended = place / "folder", place / "ended.json"
        folder.mkdir(parents=True, exist_ok=True)
        with (place / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
            if not ended.exists():
                arguments = LAUNCHES[name]
                launched = launch_example(
                    name,
                    *arguments.of(way),
                    way=way,
                    folder=folder,
                    beside_torchvision=arguments.beside_torchvision,
                    fresh=arguments.fresh,
                )
                ended.write_text(json.dumps([launched.status, launched.output]))
        status, output = json.loads(ended.read_text())
        assert status == 0, output
        return Ended(output, folder)
