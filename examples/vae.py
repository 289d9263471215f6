"""Train a variational autoencoder (VAE), with images in TensorBoard.

The encoder gives each scanned digit a place in eight dimensions, with some noise; the decoder draws the digit again.
After each evaluation two images go to the tracker: digits that were not trained on above what was drawn of them, and
digits that nobody has written, drawn from random places.

    pip install scikit-learn tensorboard
    python examples/vae.py
    torchrun --nproc-per-node 2 examples/vae.py
    tensorboard --logdir outputs/vae

The last line that it prints:

    A pixel of a digit that is drawn again is 0.083 off; outputs/vae has the images
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import TensorDataset

from pa_callbacks_extra import TrackerCallback
from pa_core import DEFAULT_CALLBACKS, AnyTrainer, Trainer, TrainerCallback

DIMENSIONS = 8


class Drawn(NamedTuple):
    """What the model makes of images: logits of their pixels, and the mean and log-variance of their places."""

    logits: Tensor
    mean: Tensor
    log_variance: Tensor


class VAE(nn.Module):
    """A small variational autoencoder of images of 8x8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 2 * DIMENSIONS))
        self.decoder = nn.Sequential(nn.Linear(DIMENSIONS, 256), nn.ReLU(), nn.Linear(256, 64), nn.Unflatten(1, (8, 8)))

    def forward(self, images: Tensor) -> Drawn:
        mean, log_variance = self.encoder(images).chunk(2, dim=1)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        return Drawn(self.decoder(mean + noise * (0.5 * log_variance).exp()), mean, log_variance)


class VAETrainer(Trainer):
    """Minimises the negative evidence lower bound, and records both of its parts."""

    def calculate_train_batch_loss(self, batch: list[Tensor]) -> dict[str, Any]:
        (images,) = batch
        drawn: Drawn = self.model(images)
        pixels = binary_cross_entropy_with_logits(drawn.logits, images, reduction="sum") / len(images)
        divergence = (drawn.mean.square() + drawn.log_variance.exp() - 1 - drawn.log_variance).sum() / 2 / len(images)
        self.log("pixel_loss", pixels.detach())
        self.log("kl", divergence.detach())
        return {"loss": pixels + divergence, "model_outputs": drawn, "batch_size": len(images)}

    def calculate_eval_batch_loss(self, batch: list[Tensor]) -> dict[str, Any]:
        return self.calculate_train_batch_loss(batch)


class ShowImages(TrainerCallback):
    """Sends reconstructions and samples to a tracker after each evaluation."""

    def __init__(self, track: TrackerCallback, model: VAE, images: Tensor) -> None:
        self.track, self.model, self.images = track, model, images
        self.places = torch.randn(5 * len(images), DIMENSIONS)  # the same each time, to see how their digits change

    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        with torch.no_grad():
            drawn: Drawn = self.model(self.images.to(trainer.device))
            samples: Tensor = self.model.decoder(self.places.to(trainer.device))
        self.track.log_image("reconstructions", grid(torch.cat([self.images, drawn.logits.sigmoid().cpu()])))
        self.track.log_image("samples", grid(samples.sigmoid()))


def grid(images: Tensor, columns: int = 10) -> Tensor:
    """Make one image of several."""
    return images.view(-1, columns, 8, 8).transpose(1, 2).reshape(-1, columns * 8)


def main(epochs: int = 40, output: Path = Path("outputs/vae")) -> None:
    """Train, and print how far the pixels of reconstructions are from those of the digits."""
    torch.manual_seed(0)
    data, _ = load_digits(return_X_y=True)
    images = torch.tensor(data, dtype=torch.float32).view(-1, 8, 8) / 16
    model, train_dataset, eval_dataset = VAE(), TensorDataset(images[:1500]), TensorDataset(images[1500:])
    track = TrackerCallback("tensorboard", "digits", logging_dir=output)
    show = ShowImages(track, model, images[1500:1510])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    trainer = VAETrainer(model, None, optimizer, callbacks=[*DEFAULT_CALLBACKS, track, show])
    trainer.train(train_dataset, epochs, eval_dataset, per_device_batch_size=64 // trainer.num_processes)

    with torch.no_grad():
        drawn: Drawn = model.eval().cpu()(images[1500:])
    distance = (drawn.logits.sigmoid() - images[1500:]).abs().mean()
    trainer.print(f"A pixel of a digit that is drawn again is {distance:.3f} off; {output} has the images")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a variational autoencoder of digits.")
    parser.add_argument("--epochs", type=int, default=40, help="how often to go over the digits")
    parser.add_argument("--output", type=Path, default=Path("outputs/vae"), help="the folder for TensorBoard")
    main(**vars(parser.parse_args()))
