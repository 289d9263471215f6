"""An autoencoder as Lightning's tutorials write one, trained by a trainer: the module stays as it is."""

# Written as users write, who annotate nothing: that it runs is what the tests are about, not what its types are.
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false
# ruff: noqa: D102, D103

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import TensorDataset, random_split

from pytorch_accelerated.callbacks import EarlyStoppingCallback, SaveBestModelCallback
from pytorch_accelerated.trainer import Trainer


class LitAutoEncoder(nn.Module):
    """The base class has changed; and `forward`, through which all processes train, chooses the step."""

    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, batch, batch_idx):
        return self.training_step(batch, batch_idx) if self.training else self.validation_step(batch, batch_idx)

    def training_step(self, batch, batch_idx):
        images, _ = batch
        images = images.view(images.size(0), -1)
        return F.mse_loss(self.decoder(self.encoder(images)), images)

    def validation_step(self, batch, batch_idx):
        return self.training_step(batch, batch_idx)

    def configure_optimizers(self):
        return optim.Adam(self.parameters(), lr=1e-2)


class ModuleTrainer(Trainer):
    """Trains modules that have their steps and their optimizer themselves."""

    def __init__(self, module, **kwargs):
        super().__init__(module, loss_func=None, optimizer=module.configure_optimizers(), **kwargs)

    def train_epoch_start(self):
        super().train_epoch_start()
        self.batch_idx = 0

    def eval_epoch_start(self):
        super().eval_epoch_start()
        self.batch_idx = 0

    def calculate_train_batch_loss(self, batch):
        loss = self.model(batch, self.batch_idx)
        self.batch_idx += 1
        return {"loss": loss, "model_outputs": None, "batch_size": len(batch[0])}

    calculate_eval_batch_loss = calculate_train_batch_loss


def main(per_device_batch_size=32):
    torch.manual_seed(0)
    scanned = load_digits()
    dataset = TensorDataset(torch.tensor(scanned.images, dtype=torch.float32) / 16, torch.tensor(scanned.target))
    train_set, valid_set = random_split(dataset, [0.8, 0.2], generator=torch.Generator().manual_seed(42))
    autoencoder = LitAutoEncoder(
        nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3)),
        nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 64)),
    )
    trainer = ModuleTrainer(
        autoencoder,
        callbacks=[SaveBestModelCallback("autoencoder.pt"), EarlyStoppingCallback(early_stopping_patience=3)],
    )
    trainer.train(train_set, 4, valid_set, per_device_batch_size)
    images = torch.stack([valid_set[index][0] for index in range(8)]).flatten(1)
    embeddings = autoencoder.encoder(images)
    return {
        "train_loss_epoch": trainer.run_history.get_metric_values("train_loss_epoch"),
        "eval_loss_epoch": trainer.run_history.get_metric_values("eval_loss_epoch"),
        "embeddings": embeddings.shape,
        "weights_of_processes": trainer.gather(next(autoencoder.decoder.parameters())[:1].detach()),
    }
