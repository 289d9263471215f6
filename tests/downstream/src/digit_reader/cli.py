"""The command line: trains a network, and says how well it reads digits that it has not seen."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pa_core import SaveBestModelCallback, TerminateOnNaNCallback
from pa_schedulers import CosineLrScheduler

from .batches import Digits, collate
from .callbacks import SmoothLess, TellBest, make_metrics
from .model import DigitNet
from .trainer import DigitTrainer


@dataclass(frozen=True)
class Options:
    """What the command line was given."""

    epochs: int
    hidden: int
    output: Path


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="digit-reader", description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--output", type=Path, default=Path("digit_reader.pt"))
    return Options(**vars(parser.parse_args(arguments)))


def train(options: Options) -> float:
    """Train a network, and return the share of test digits that its best weights read rightly."""
    torch.default_generator.manual_seed(0)
    smooth_less = SmoothLess()
    trainer = DigitTrainer(
        DigitNet(options.hidden),
        callbacks=[
            TerminateOnNaNCallback,
            make_metrics(),
            smooth_less,
            SaveBestModelCallback(options.output, watch_metric="eval_accuracy", greater_is_better=True),
            TellBest("eval_accuracy"),
        ],
    )
    test = Digits("test")
    trainer.train(
        Digits("train"),
        num_epochs=options.epochs,
        eval_dataset=test,
        per_device_batch_size=32,
        create_scheduler_fn=CosineLrScheduler.create_scheduler_fn(num_warmup_epochs=1),
        collate_fn=collate,
    )
    trainer.evaluate(test, per_device_batch_size=128, collate_fn=collate)
    hardest = int(smooth_less.misread.argmax())
    trainer.print(f"The {hardest} is misread most often, {int(smooth_less.misread[hardest])} times")
    return float(trainer.run_history.get_latest_metric("evaluation_accuracy"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    print(f"Read {train(parse(arguments)):.1%} of the test digits rightly")  # noqa: T201 - what a command is for


if __name__ == "__main__":
    main()
