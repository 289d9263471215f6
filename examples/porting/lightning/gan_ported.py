"""Train two networks against each other, each with an optimizer of its own: one makes digits, one judges them."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.utils.data import TensorDataset

from pa_core import Run, SaveTrainingStateCallback


def load_data() -> TensorDataset:
    digits = load_digits()
    return TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 8 - 1)


class GAN(nn.Module):
    """A generator and a discriminator, each with an optimizer."""

    def __init__(self, real: Tensor, noise: int = 16) -> None:
        super().__init__()
        self.noise = noise
        self.mean_of_real = real.mean(dim=0)
        self.generator = nn.Sequential(
            nn.Linear(noise, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64), nn.Tanh()
        )
        self.discriminator = nn.Sequential(
            nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(128, 1)
        )

    def forward(self, noise: Tensor) -> Tensor:
        return self.generator(noise)

    def training_step(self, batch: list[Tensor], run: Run) -> None:
        (real,) = batch
        made = self(torch.randn(len(real), self.noise, device=real.device))

        # the discriminator learns to tell them apart
        loss = softplus(-self.discriminator(real)).mean() + softplus(self.discriminator(made.detach())).mean()
        run.backward(loss, model="discriminator")
        run.step("discriminator")

        # the generator learns to be taken for real
        loss = softplus(-self.discriminator(made)).mean()
        run.backward(loss, model="generator")
        run.step("generator")

    @torch.no_grad()
    def distance(self, device: torch.device) -> float:
        """How far the mean of what is generated is from that of the scanned digits."""
        made = self(torch.randn(2000, self.noise, device=device))
        return (made.mean(dim=0).cpu() - self.mean_of_real).abs().mean().item()

    def configure_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        optimizer_g = torch.optim.Adam(self.generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
        optimizer_d = torch.optim.Adam(self.discriminator.parameters(), lr=5e-4, betas=(0.5, 0.999))
        return {"generator": optimizer_g, "discriminator": optimizer_d}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    torch.manual_seed(0)
    data = load_data()
    gan = GAN(data.tensors[0])
    save = SaveTrainingStateCallback("states/gan", save_every_n_epochs=1)
    models = {"generator": gan.generator, "discriminator": gan.discriminator}
    with Run(
        models, gan.configure_optimizers(), data, num_epochs=args.epochs, per_device_batch_size=args.batch_size,
        callbacks=[save], resume_from="states/gan", resume_missing="start",
    ) as run:
        for epoch in run.epochs():
            for batch in run.batches():
                gan.training_step(batch, run)
            losses = [run.run_history.get_latest_metric(f"train_{name}_loss_epoch") for name in models]
            print(f"epoch {epoch}: generator {losses[0]:.3f}, discriminator {losses[1]:.3f}")
    print(f"distance {gan.distance(run.device):.3f}")
    torch.save(gan.generator.state_dict(), "generator.pt")


if __name__ == "__main__":
    main()
