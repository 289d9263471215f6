"""Train a network on scanned digits: callbacks keep the best weights and stop early."""

import argparse
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split
from torchmetrics.classification import MulticlassAccuracy


class LitDigits(L.LightningModule):
    """Two convolutions and a head."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.accuracy = MulticlassAccuracy(num_classes=10, average="micro")
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        images, targets = batch
        loss = F.cross_entropy(self(images), targets)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        images, targets = batch
        logits = self(images)
        self.log("val_loss", F.cross_entropy(logits, targets), prog_bar=True)
        self.accuracy(logits, targets)
        self.log("val_accuracy", self.accuracy, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def load_data() -> list[Subset[Any]]:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    dataset = TensorDataset(images, torch.tensor(digits.target))
    return random_split(dataset, [1500, 297], generator=torch.Generator().manual_seed(0))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()

    L.seed_everything(0)
    train_data, val_data = load_data()
    model = LitDigits(args.lr)
    best = ModelCheckpoint("checkpoints", monitor="val_accuracy", mode="max", save_last=True)
    stop = EarlyStopping("val_loss", patience=3)
    trainer = L.Trainer(max_epochs=args.epochs, callbacks=[best, stop], logger=False)
    trainer.fit(
        model,
        DataLoader(train_data, batch_size=args.batch_size, shuffle=True),
        DataLoader(val_data, batch_size=args.batch_size),
        ckpt_path="last",
    )
    print(f"best accuracy {best.best_model_score:.3f}")


if __name__ == "__main__":
    main()
