"""Train two networks against each other in a trial.

A generator makes digits, and a discriminator tells them from scanned ones. Each has an optimizer of
its own. Both are in the checkpoints, and the gradients of both are averaged over the processes. This file runs
unchanged in one process or several:

    python examples/trials/trial_gan.py
    accelerate launch examples/trials/trial_gan.py
    torchrun --nproc-per-node 2 examples/trials/trial_gan.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.utils.data import TensorDataset

import pa_trial as pytorch

HPARAMS = {"global_batch_size": 32, "noise": 16, "lr_generator": 1e-3, "lr_discriminator": 3e-3}


def load_data() -> Tensor:
    """Return the scanned digits, between -1 and 1."""
    data, _ = load_digits(return_X_y=True)
    return torch.tensor(data, dtype=torch.float32) / 8 - 1


class PrintDistance(pytorch.PyTorchCallback):
    """Prints after each validation how far the generated digits are from the scanned ones."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context

    def on_validation_end(self, metrics: pytorch.Metrics) -> None:
        if self.context.distributed.get_rank() == 0:
            epoch = self.context.current_train_epoch() + 1
            print(f"Epoch {epoch}: the mean generated pixel is {metrics['distance']:.3f} from the scanned one")


class DigitsGan(pytorch.PyTorchTrial[list[Tensor]]):
    """A generator and a discriminator, which take turns on each batch."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.digits = load_data()
        self.noise: int = context.get_hparam("noise")
        self.generator = context.wrap_model(
            nn.Sequential(nn.Linear(self.noise, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64))
        )
        self.discriminator = context.wrap_model(
            nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(128, 1))
        )
        self.optimizer_generator = context.wrap_optimizer(self.make_optimizer(self.generator, "lr_generator"))
        self.optimizer_discriminator = context.wrap_optimizer(
            self.make_optimizer(self.discriminator, "lr_discriminator")
        )

    def make_optimizer(self, model: nn.Module, learning_rate: str) -> torch.optim.Optimizer:
        """Return the optimizer of one of the models."""
        rate: float = self.context.get_hparam(learning_rate)
        return torch.optim.Adam(model.parameters(), lr=rate, betas=(0.5, 0.999))

    def generate(self, number: int) -> Tensor:
        """Return so many digits that nobody has written."""
        noise = torch.randn(number, self.noise, device=self.context.device)
        return torch.tanh(self.generator(noise))

    def build_training_data_loader(self) -> pytorch.DataLoader:
        batch_size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(TensorDataset(self.digits), batch_size=batch_size, shuffle=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(TensorDataset(self.digits), batch_size=len(self.digits))

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"distance": PrintDistance(self.context)}

    def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pytorch.Metrics:
        (scanned,) = batch
        generated = self.generate(len(scanned))

        self.discriminator.requires_grad_(True)
        loss_discriminator = softplus(-self.discriminator(scanned)) + softplus(self.discriminator(generated.detach()))
        self.context.backward(loss_discriminator.mean())
        self.context.step_optimizer(self.optimizer_discriminator)

        # The discriminator only passes gradients on here; it does not learn from the generator's loss.
        self.discriminator.requires_grad_(False)
        loss_generator = softplus(-self.discriminator(generated))
        self.context.backward(loss_generator.mean())
        self.context.step_optimizer(self.optimizer_generator)
        return {"loss_discriminator": loss_discriminator, "loss_generator": loss_generator}

    def evaluate_full_dataset(self, data_loader: torch.utils.data.DataLoader[Any]) -> pytorch.Metrics:
        scanned = torch.cat([digits for (digits,) in data_loader])
        generated = self.generate(len(scanned)).cpu()
        return {"distance": (generated.mean(0) - scanned.mean(0)).abs().mean()}


def main(epochs: int = 20, output: Path = Path("outputs/trial_gan")) -> None:
    """Train, and keep the last two checkpoints in ``output``."""
    with pytorch.init(hparams=HPARAMS, checkpoint_dir=output, seed=0, max_checkpoints=2) as context:
        trainer = pytorch.Trainer(DigitsGan(context), context)
        trainer.fit(max_length=pytorch.Epoch(epochs), validation_period=pytorch.Epoch(5), checkpoint_policy="all")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a generator of digits against a discriminator.")
    parser.add_argument("--epochs", type=int, default=20, help="how often to go over the digits")
    parser.add_argument("--output", type=Path, default=Path("outputs/trial_gan"), help="the folder for the checkpoints")
    arguments = parser.parse_args()
    main(arguments.epochs, arguments.output)
