"""Develop a trial on your machine, and submit the same file as a batch job by one flag.

Without the flag, it trains and validates on a single batch, which shows in a second whether everything fits together.
With it, the job trains to its end, and saves checkpoints in the folder:

    python examples/trials/trial_batch_job.py
    python examples/trials/trial_batch_job.py --job runs/digits
    torchrun --nproc-per-node 2 examples/trials/trial_batch_job.py --job runs/digits

Most schedulers announce by a SIGTERM that they need the machine. The job then saves a checkpoint and ends with status
75, which means "restart me". Restarted, even after a crash, it resumes from its newest checkpoint, and
ends with the same weights as if nothing had happened.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Subset, TensorDataset, random_split

import pa_trial as pytorch

TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h

Digits = tuple[Tensor, Tensor]  # pixels and labels


class DigitsTrial(pytorch.PyTorchTrial[Digits]):
    """Trains a small network on scanned digits, with a learning rate that falls."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
        self.model = context.wrap_model(network)
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters(), lr=3e-3))
        context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.8),
            step_mode=pytorch.LRScheduler.StepMode.STEP_EVERY_EPOCH,
        )
        self.training_digits, self.validation_digits = self.load_data()

    def load_data(self) -> list[Subset]:
        """Return the training and validation parts of the digits."""
        data, target = load_digits(return_X_y=True)
        dataset = TensorDataset(torch.tensor(data, dtype=torch.float32) / 16, torch.tensor(target))
        return random_split(dataset, [1500, 297], generator=torch.Generator().manual_seed(0))

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(self.training_digits, batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(self.validation_digits, batch_size=self.context.get_per_slot_batch_size())

    def train_batch(self, batch: Digits, epoch_idx: int, batch_idx: int) -> pytorch.Metrics:
        pixels, labels = batch
        loss = functional.cross_entropy(self.model(pixels), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Digits, batch_idx: int) -> pytorch.Metrics:
        pixels, labels = batch
        return {"accuracy": (self.model(pixels).argmax(1) == labels).float().mean()}


def main(job: Path | None, epochs: int) -> int:
    """Try the trial on a single batch or, with a folder, train; return the exit status."""
    with pytorch.init(
        hparams={"global_batch_size": 32},
        checkpoint_dir=job or Path("outputs/trial_batch_job"),
        seed=0,
        max_checkpoints=2,
    ) as context:
        trainer = pytorch.Trainer(DigitsTrial(context), context)
        trainer.fit(
            max_length=pytorch.Epoch(epochs),
            validation_period=pytorch.Epoch(1),
            checkpoint_period=pytorch.Batch(20),
            checkpoint_policy="none",
            latest_checkpoint=None if job is None else context.get_latest_checkpoint(),
            test_mode=job is None,
        )
        return TRY_AGAIN if context.get_stop_requested() else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on scanned digits: a single batch, or as a job that resumes.")
    parser.add_argument("--job", type=Path, help="the folder for the checkpoints of the job")
    parser.add_argument("--epochs", type=int, default=10, help="how often to go over the training digits")
    arguments = parser.parse_args()
    sys.exit(main(arguments.job, arguments.epochs))
