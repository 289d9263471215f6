"""Train two networks against each other, each with an optimizer of its own: one makes digits, one judges them."""

import argparse

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.utils.data import DataLoader, TensorDataset


def load_data() -> TensorDataset:
    digits = load_digits()
    return TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 8 - 1)


class GAN(L.LightningModule):
    """A generator and a discriminator, each with an optimizer."""

    def __init__(self, real: Tensor, noise: int = 16) -> None:
        super().__init__()
        self.automatic_optimization = False
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

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        (real,) = batch
        optimizer_g, optimizer_d = self.optimizers()
        made = self(torch.randn(len(real), self.noise, device=real.device))

        # the discriminator learns to tell them apart
        self.toggle_optimizer(optimizer_d)
        loss = softplus(-self.discriminator(real)).mean() + softplus(self.discriminator(made.detach())).mean()
        self.log("loss_of_discriminator", loss, on_step=False, on_epoch=True)
        optimizer_d.zero_grad()
        self.manual_backward(loss)
        optimizer_d.step()
        self.untoggle_optimizer(optimizer_d)

        # the generator learns to be taken for real
        self.toggle_optimizer(optimizer_g)
        loss = softplus(-self.discriminator(made)).mean()
        self.log("loss_of_generator", loss, on_step=False, on_epoch=True)
        optimizer_g.zero_grad()
        self.manual_backward(loss)
        optimizer_g.step()
        self.untoggle_optimizer(optimizer_g)

    @torch.no_grad()
    def distance(self, device: torch.device) -> float:
        """How far the mean of what is generated is from that of the scanned digits."""
        made = self(torch.randn(2000, self.noise, device=device))
        return (made.mean(dim=0).cpu() - self.mean_of_real).abs().mean().item()

    def on_train_epoch_end(self) -> None:
        losses = [self.trainer.callback_metrics[f"loss_of_{name}"] for name in ("generator", "discriminator")]
        print(f"epoch {self.current_epoch}: generator {losses[0]:.3f}, discriminator {losses[1]:.3f}")

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        optimizer_g = torch.optim.Adam(self.generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
        optimizer_d = torch.optim.Adam(self.discriminator.parameters(), lr=5e-4, betas=(0.5, 0.999))
        return [optimizer_g, optimizer_d]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    L.seed_everything(0)
    data = load_data()
    gan = GAN(data.tensors[0])
    save = ModelCheckpoint("checkpoints", save_last=True)
    trainer = L.Trainer(max_epochs=args.epochs, callbacks=[save], logger=False)
    trainer.fit(gan, DataLoader(data, batch_size=args.batch_size, shuffle=True), ckpt_path="last")
    print(f"distance {gan.distance(gan.device):.3f}")
    torch.save(gan.generator.state_dict(), "generator.pt")


if __name__ == "__main__":
    main()
