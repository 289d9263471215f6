"""The Trainer of Lightning, with its defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from task import BATCH_SIZE, NUM_EPOCHS, UPDATES_BETWEEN_STATES, WORLD_SIZE, Record, Samples, Values, network
from torch import Tensor, nn
from torch.utils.data import DataLoader


class Regression(lightning.LightningModule):
    """The task."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self.layer = network()
        self._record = record

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], _: int) -> Tensor:
        """Return the loss."""
        features, targets, numbers = batch
        self._record.step(self.global_step, numbers)
        return nn.functional.mse_loss(self.layer(features), targets)

    def validation_step(self, batch: tuple[Tensor, Tensor, Tensor], _: int) -> None:
        """Log the mean of the values, over all processes."""
        self.log("mean", batch[1].mean(), on_epoch=True, sync_dist=True, batch_size=len(batch[1]))

    def configure_optimizers(self) -> Any:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


def main() -> None:
    """Train, evaluate, and write down what was seen."""
    record = Record()
    lightning.seed_everything(0)
    model = Regression(record)
    states = ModelCheckpoint(record.states, every_n_train_steps=UPDATES_BETWEEN_STATES, save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=WORLD_SIZE,
        strategy="ddp" if WORLD_SIZE > 1 else "auto",
        max_epochs=NUM_EPOCHS,
        callbacks=[states],
        logger=False,
        enable_progress_bar=False,
    )
    newest = None
    if record.is_resumed:
        newest = max(Path(record.states).iterdir(), key=lambda path: int(path.stem.partition("step=")[2]))
    loader = DataLoader(Samples(record), batch_size=BATCH_SIZE, shuffle=True)
    trainer.fit(model, loader, ckpt_path=newest)
    mean = None
    if record.evaluates:
        mean = trainer.validate(model, DataLoader(Values(), batch_size=2), verbose=False)[0]["mean"]
    record.finish(model.layer, mean)


if __name__ == "__main__":
    main()
