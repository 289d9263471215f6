"""Train a network on scanned digits: callbacks keep the best weights and stop early."""

import argparse
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Subset, TensorDataset, random_split
from torchmetrics.classification import MulticlassAccuracy

from pa_callbacks_extra import EarlyStoppingCallback, TorchMetricsCallback
from pa_core import DEFAULT_CALLBACKS, SaveBestModelCallback, SaveTrainingStateCallback, Trainer


class LitDigits(nn.Module):
    """Two convolutions and a head."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)

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

    torch.manual_seed(0)
    train_data, val_data = load_data()
    model = LitDigits(args.lr)
    accuracy = TorchMetricsCallback(MulticlassAccuracy(num_classes=10, average="micro"))
    best = SaveBestModelCallback("best.pt", watch_metric="eval_MulticlassAccuracy", greater_is_better=True)
    save = SaveTrainingStateCallback("states/lightning_digits", save_every_n_epochs=1)
    stop = EarlyStoppingCallback(early_stopping_patience=3, early_stopping_threshold=0)
    callbacks = [accuracy, *DEFAULT_CALLBACKS, best, save, stop]
    trainer = Trainer(model, F.cross_entropy, model.configure_optimizers(), callbacks)
    trainer.train(train_data, args.epochs, val_data, args.batch_size, resume_from="states/lightning_digits", resume_missing="start")
    print(f"best accuracy {best.best.value:.3f}")


if __name__ == "__main__":
    main()
