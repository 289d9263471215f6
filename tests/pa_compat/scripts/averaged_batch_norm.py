"""A network with batch norm layers, whose statistics are those of all processes, and the average of its weights."""

# Written as users write, who annotate nothing: that it runs is what the tests are about, not what its types are.
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false
# ruff: noqa: D103, T201

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import TensorDataset

from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import (
    ConvertSyncBatchNormCallback,
    EarlyStoppingCallback,
    ModelEmaCallback,
)


def digits(part):
    scanned = load_digits()
    images = torch.tensor(scanned.images, dtype=torch.float32).unsqueeze(1) / 16
    return TensorDataset(images[part], torch.tensor(scanned.target)[part])


def main(per_device_batch_size=32):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10), nn.BatchNorm1d(10)
    )
    average = ModelEmaCallback(decay=0.8)
    trainer = Trainer(
        model,
        nn.CrossEntropyLoss(),
        optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        callbacks=[average, EarlyStoppingCallback(early_stopping_patience=3), ConvertSyncBatchNormCallback],
    )
    trainer.train(
        digits(slice(0, 500)),
        num_epochs=4,
        eval_dataset=digits(slice(500, 700)),
        per_device_batch_size=per_device_batch_size,
    )
    history = trainer.run_history
    return {
        "losses": {name: list(history.get_metric_values(name)) for name in sorted(history.get_metric_names())},
        "layers": [type(module).__name__ for module in model],
        "running_mean": model.get_buffer("1.running_mean").tolist(),
        "averaged_mean": average.ema.module.get_buffer("1.running_mean").tolist(),
    }


if __name__ == "__main__":
    print(main())
