"""Predict the progress of a disease: a data module, a schedule by steps, accumulation and clipping."""

import argparse
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_diabetes
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset, random_split


class DiabetesData(L.LightningDataModule):
    """Ten measurements of each patient, and the progress of the disease a year later, all standardised."""

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        diabetes = load_diabetes(scaled=False)
        columns = torch.tensor(diabetes.data, dtype=torch.float32), torch.tensor(diabetes.target, dtype=torch.float32)
        features, targets = [(column - column.mean(dim=0)) / column.std(dim=0) for column in columns]
        dataset = TensorDataset(features, targets.unsqueeze(1))
        generator = torch.Generator().manual_seed(0)
        self.train_data, self.val_data = random_split(dataset, [342, 100], generator=generator)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train_data, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.val_data, batch_size=self.batch_size)


class LitRegressor(L.LightningModule):
    """A small network with a loss that outliers do not rule."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.layers = nn.Sequential(
            nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, features: Tensor) -> Tensor:
        return self.layers(features)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        features, targets = batch
        loss = F.smooth_l1_loss(self(features), targets)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        features, targets = batch
        self.log("val_loss", F.smooth_l1_loss(self(features), targets))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr / 25, weight_decay=0.05)
        scheduler = OneCycleLR(optimizer, max_lr=self.lr, total_steps=self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=5e-3)
    args = parser.parse_args()

    L.seed_everything(0)
    data = DiabetesData(args.batch_size)
    model = LitRegressor(args.lr)
    trainer = L.Trainer(
        max_epochs=args.epochs,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        callbacks=[ModelCheckpoint("checkpoints", save_last=True), LearningRateMonitor("step")],
        logger=CSVLogger("logs"),
    )
    trainer.fit(model, datamodule=data, ckpt_path="last")
    print(f"val loss {trainer.callback_metrics['val_loss']:.3f}")
    torch.save(model.state_dict(), "diabetes.pt")


if __name__ == "__main__":
    main()
