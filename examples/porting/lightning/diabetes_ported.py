"""Predict the progress of a disease: a data module, a schedule by steps, accumulation and clipping."""

import argparse
from functools import partial
from typing import Any

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import TensorDataset, random_split

from pa_core import DEFAULT_CALLBACKS, SaveTrainingStateCallback, Trainer, TrainerPlaceholderValues


class DiabetesData:
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


class LitRegressor(nn.Module):
    """A small network with a loss that outliers do not rule."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.layers = nn.Sequential(
            nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, features: Tensor) -> Tensor:
        return self.layers(features)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr / 25, weight_decay=0.05)
        updates = TrainerPlaceholderValues.NUM_EPOCHS * TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH
        return optimizer, partial(OneCycleLR, max_lr=self.lr, total_steps=updates)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=5e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    data = DiabetesData(args.batch_size)
    data.setup("fit")
    model = LitRegressor(args.lr)
    optimizer, schedule = model.configure_optimizers()
    callbacks = [*DEFAULT_CALLBACKS, SaveTrainingStateCallback("states/diabetes", save_every_n_epochs=1)]
    trainer = Trainer(model, F.smooth_l1_loss, optimizer, callbacks)
    trainer.train(data.train_data, args.epochs, data.val_data, data.batch_size, gradient_accumulation_steps=2,
                  gradient_clip_norm=1.0, create_scheduler_fn=schedule, resume_from="states/diabetes", resume_missing="start")
    print(f"val loss {trainer.run_history.get_latest_metric('eval_loss_epoch'):.3f}")
    torch.save(model.state_dict(), "diabetes.pt")


if __name__ == "__main__":
    main()
