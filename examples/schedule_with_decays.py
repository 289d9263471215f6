"""Train for three budgets in one run (warmup-stable-decay).

The learning rate stays constant and decays only before each of three checkpoints, which are tested. Then training
continues for as long again from the state before the last decay, instead of starting over:

    python examples/schedule_with_decays.py
    torchrun --nproc-per-node 2 examples/schedule_with_decays.py
    accelerate launch --mixed_precision bf16 examples/schedule_with_decays.py

The last lines that it prints:

    Recognised 91.0% of the test digits after 90 updates
    Recognised 93.8% of the test digits after 180 updates
    Recognised 95.8% of the test digits after 360 updates
    Recognised 97.8% of the test digits after 720 updates
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset, random_split

from pa_core import DEFAULT_CALLBACKS, Trainer
from pa_schedulers import WSDCheckpointCallback, WSDLrScheduler


class DigitsTrainer(Trainer):
    """A trainer that also records which share of the digits is recognised."""

    def calculate_eval_batch_loss(self, batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
        output = super().calculate_eval_batch_loss(batch)
        self.log("accuracy", (output["model_outputs"].argmax(dim=1) == batch[1]).float().mean())
        return output


def load_data() -> list[Subset]:
    """Return the digits to train on, and those to test on."""
    data, target = load_digits(return_X_y=True)
    pixels = torch.tensor(data, dtype=torch.float32).view(-1, 8, 8) / 16
    dataset = TensorDataset(pixels, torch.tensor(target))
    return random_split(dataset, [1440, 357], generator=torch.Generator().manual_seed(0))


def make_trainer(checkpoints: WSDCheckpointCallback) -> DigitsTrainer:
    """Return a trainer of a small network that saves before and after each decay."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return DigitsTrainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[*DEFAULT_CALLBACKS, checkpoints])


def main(epochs: int = 8, output: Path = Path("outputs/schedule_with_decays")) -> None:
    """Train with three checkpoints in ``output``, train on from the last, and print what each recognises."""
    torch.manual_seed(0)
    train_dataset, test_dataset = load_data()

    trainer = make_trainer(WSDCheckpointCallback(output / "first"))
    trainer.train(
        train_dataset,
        num_epochs=epochs,
        per_device_batch_size=32,
        create_scheduler_fn=WSDLrScheduler.create_scheduler_fn(num_warmup_epochs=0.5, num_checkpoints=3),
    )
    assert isinstance(trainer.scheduler, WSDLrScheduler)
    decays = trainer.scheduler.get_decay_info()
    recognised: dict[int, float] = {}
    for decay in decays:
        export = output / "first" / f"checkpoint_{decay['period_end']}_wsd_post_decay.pt"
        trainer.load_checkpoint(export, load_optimizer=False, load_scheduler=False)
        trainer.evaluate(test_dataset, per_device_batch_size=64)
        recognised[decay["period_end"]] = trainer.run_history.get_latest_metric("evaluation_accuracy")

    before_the_last_decay = output / "first" / f"checkpoint_{decays[-1]['pre_decay_step']}_wsd_pre_decay"
    trainer = make_trainer(WSDCheckpointCallback(output / "longer", initial_checkpoint=before_the_last_decay))
    trainer.train(
        train_dataset,
        num_epochs=epochs,
        per_device_batch_size=32,
        create_scheduler_fn=WSDLrScheduler.create_scheduler_fn(is_continuation_from_checkpoint=True),
    )
    trainer.evaluate(test_dataset, per_device_batch_size=64)
    recognised[2 * max(recognised)] = trainer.run_history.get_latest_metric("evaluation_accuracy")
    for updates, share in recognised.items():
        trainer.print(f"Recognised {share:.1%} of the test digits after {updates} updates")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on scanned digits, with three decays of the learning rate.")
    parser.add_argument("--epochs", type=int, default=8, help="how often to go over the training digits, each time")
    parser.add_argument("--output", type=Path, default=Path("outputs/schedule_with_decays"), help="where it writes")
    main(**vars(parser.parse_args()))
