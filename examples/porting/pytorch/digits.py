"""Train a small network on scanned digits in plain PyTorch: in one process, and from the beginning each time."""

import argparse
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split


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


def train(model: Net, device: torch.device, loader: DataLoader[Any], optimizer: torch.optim.Optimizer,
          scheduler: LRScheduler, epoch: int) -> None:
    model.train()
    for step, (images, targets) in enumerate(loader):
        images, targets = images.to(device), targets.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), targets)
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 10 == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.3f}")


def test(model: Net, device: torch.device, loader: DataLoader[Any]) -> float:
    model.eval()
    correct = 0
    with torch.no_grad():
        for images, targets in loader:
            images, targets = images.to(device), targets.to(device)
            correct += (model(images).argmax(dim=1) == targets).sum().item()
    return correct / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_data, test_data = load_data()
    train_loader = DataLoader(train_data, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test_data, batch_size=128)
    model = Net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = OneCycleLR(optimizer, max_lr=1e-2, total_steps=args.epochs * len(train_loader))
    for epoch in range(args.epochs):
        train(model, device, train_loader, optimizer, scheduler, epoch)
        print(f"epoch {epoch} accuracy {test(model, device, test_loader):.3f}")
    torch.save(model.state_dict(), "digits.pt")


if __name__ == "__main__":
    main()
