"""Train a GAN with two optimizers.

Generator and discriminator each have a name and an optimizer. Training states include both, and their gradients are
averaged over the processes: two passes over the discriminator, and one over the generator through it. The training loop
is in this script. Interrupt it and run it again, and it resumes. Delete outputs/gan to start over.

    python examples/gan.py
    torchrun --nproc-per-node 2 examples/gan.py
    accelerate launch --mixed_precision bf16 examples/gan.py

The last line that it prints:

    The mean pixel of the generated digits is 0.196 from that of the scanned ones
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import softplus
from torch.utils.data import TensorDataset

from pa_core import Run, SaveTrainingStateCallback

NOISE = 16


def load_data() -> TensorDataset:
    """Return the scanned digits, between -1 and 1."""
    data, _ = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(data, dtype=torch.float32) / 8 - 1)


def make_models() -> tuple[nn.Sequential, nn.Sequential]:
    """Return a generator and a discriminator."""
    generator = nn.Sequential(nn.Linear(NOISE, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64))
    generator.append(nn.Tanh())
    discriminator = nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(128, 1))
    return generator, discriminator


def main(epochs: int = 30, output: Path = Path("outputs/gan")) -> None:
    """Train, and print how far the mean of the generated digits is from that of the scanned ones."""
    torch.manual_seed(0)
    digits = load_data()
    generator, discriminator = make_models()
    run = Run(
        {"generator": generator, "discriminator": discriminator},
        {
            "generator": torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999)),
            "discriminator": torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999)),
        },
        digits,
        num_epochs=epochs,
        per_device_batch_size=32,
        callbacks=[SaveTrainingStateCallback(output / "states", save_every_n_epochs=5, max_checkpoints=2)],
        resume_from=output / "states",
        resume_missing="start",
    )
    with run:
        for epoch in run.epochs():
            for update in run.updates():
                for (scanned,) in update:
                    made = generator(torch.randn(len(scanned), NOISE, device=run.device))
                    update.backward(softplus(-discriminator(scanned)).mean(), model="discriminator")
                    update.backward(softplus(discriminator(made.detach())).mean(), model="discriminator")
                    update.backward(softplus(-discriminator(made)).mean(), model="generator")
                update.step("discriminator")
                update.step("generator")
            losses = [run.run_history.get_latest_metric(f"train_{name}_loss_epoch") for name in run.optimizers]
            run.print(f"Epoch {epoch + 1}: generator {losses[0]:.3f}, discriminator {losses[1]:.3f}")

    with torch.no_grad():
        made = generator.eval()(torch.randn(2000, NOISE, device=run.device))
    distance = (made.cpu().mean(0) - digits.tensors[0].mean(0)).abs().mean()
    run.print(f"The mean pixel of the generated digits is {distance:.3f} from that of the scanned ones")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a generator of digits against a discriminator.")
    parser.add_argument("--epochs", type=int, default=30, help="how often to go over the digits")
    parser.add_argument("--output", type=Path, default=Path("outputs/gan"), help="the folder for the training states")
    main(**vars(parser.parse_args()))
