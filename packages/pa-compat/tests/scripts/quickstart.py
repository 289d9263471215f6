"""The first script that anybody writes: train, evaluate after each epoch, test at the end."""

# Written as users write, who annotate nothing: that it runs is what the tests are about, not what its types are.
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false
# ruff: noqa: D102, D103

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import TensorDataset, random_split

from pytorch_accelerated import Trainer


class DigitsModel(nn.Module):
    """A perceptron over the pixels."""

    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, input):
        return self.main(input.view(input.shape[0], -1))


def main(num_epochs=8):
    torch.manual_seed(0)
    scanned = load_digits()
    dataset = TensorDataset(torch.tensor(scanned.images, dtype=torch.float32) / 16, torch.tensor(scanned.target))
    train_dataset, validation_dataset, test_dataset = random_split(dataset, [1200, 297, 300])
    model = DigitsModel()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss_func = nn.CrossEntropyLoss()

    trainer = Trainer(model, loss_func=loss_func, optimizer=optimizer)
    trainer.train(
        train_dataset=train_dataset, eval_dataset=validation_dataset, num_epochs=num_epochs, per_device_batch_size=32
    )
    train_losses = list(trainer.run_history.get_metric_values("train_loss_epoch"))
    eval_losses = list(trainer.run_history.get_metric_values("eval_loss_epoch"))
    trainer.evaluate(dataset=test_dataset, per_device_batch_size=64)
    return train_losses, eval_losses, trainer, test_dataset


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
