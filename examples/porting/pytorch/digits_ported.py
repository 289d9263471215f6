"""Train a small network on scanned digits with a loop of its own: in any number of processes, and exactly resumable."""

import argparse
from functools import partial
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import Dataset, Subset, TensorDataset, random_split

from pa_core import Run, SaveTrainingStateCallback, TrainerPlaceholderValues


class Net(nn.Module):
    """Two convolutions and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.dropout(F.relu(self.fc1(x.flatten(1))), 0.2, training=self.training)
        return self.fc2(x)


def load_data() -> list[Subset[tuple[Tensor, ...]]]:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    dataset = TensorDataset(images, torch.tensor(digits.target))
    return random_split(dataset, [1500, 297], generator=torch.Generator().manual_seed(0))


def train(model: Net, run: Run, epoch: int) -> None:
    model.train()
    for step, (images, targets) in enumerate(run.batches()):
        loss = F.cross_entropy(model(images), targets)
        run.backward(loss)
        run.step()
        if step % 10 == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.3f}")


def test(model: Net, run: Run, dataset: Dataset[Any]) -> float:
    for images, targets in run.evaluation_batches(dataset, per_device_batch_size=128):
        run.log("accuracy", (model(images).argmax(dim=1) == targets).float().mean())
    return run.run_history.get_latest_metric("eval_accuracy_epoch")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    torch.manual_seed(0)
    train_data, test_data = load_data()
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    updates = TrainerPlaceholderValues.NUM_EPOCHS * TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH
    scheduler = partial(OneCycleLR, max_lr=1e-2, total_steps=updates)
    save = SaveTrainingStateCallback("states/digits", save_every_n_epochs=1)
    with Run(model, optimizer, train_data, num_epochs=args.epochs, per_device_batch_size=args.batch_size,
             create_scheduler_fn=scheduler, callbacks=[save], resume_from="states/digits", resume_missing="start") as run:
        for epoch in run.epochs():
            train(model, run, epoch)
            print(f"epoch {epoch} accuracy {test(model, run, test_data):.3f}")
        if run.is_main_process:
            torch.save(model.state_dict(), "digits.pt")


if __name__ == "__main__":
    main()
