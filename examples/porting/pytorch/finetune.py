"""Fine-tune a network on digits that it has not seen: its head first, then all of it; the best weights are kept."""

import argparse
import copy
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split


class Net(nn.Module):
    """Convolutions, and a head for five classes."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.2),
        )
        self.head = nn.Linear(64, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))


def load_data(first: int) -> dict[str, Subset[Any]]:
    """The images of five digits, and which of the five each is."""
    digits = load_digits()
    images, targets = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(digits.target)
    chosen = (targets >= first) & (targets < first + 5)
    dataset = TensorDataset(images[chosen], targets[chosen] - first)
    parts = random_split(dataset, [0.8, 0.2], generator=torch.Generator().manual_seed(0))
    return {"train": parts[0], "val": parts[1]}


def train_model(name: str, model: nn.Module, data: dict[str, Subset[Any]], optimizer: torch.optim.Optimizer,
                num_epochs: int) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)
    criterion = nn.CrossEntropyLoss()
    scheduler = StepLR(optimizer, step_size=4, gamma=0.3)
    loaders = {phase: DataLoader(data[phase], batch_size=32, shuffle=phase == "train") for phase in data}
    best_weights, best_accuracy = copy.deepcopy(model.state_dict()), 0.0

    for epoch in range(num_epochs):
        for phase in ("train", "val"):
            model.train(phase == "train")
            running_loss, running_corrects = 0.0, 0
            for images, targets in loaders[phase]:
                images, targets = images.to(device), targets.to(device)
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    outputs = model(images)
                    loss = criterion(outputs, targets)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()
                running_loss += loss.item() * len(images)
                running_corrects += (outputs.argmax(dim=1) == targets).sum().item()
            if phase == "train":
                scheduler.step()
            loss, accuracy = running_loss / len(data[phase]), running_corrects / len(data[phase])
            print(f"{name} epoch {epoch}: {phase} loss {loss:.3f} accuracy {accuracy:.3f}")
            if phase == "val" and accuracy > best_accuracy:
                best_weights, best_accuracy = copy.deepcopy(model.state_dict()), accuracy

    print(f"{name}: best accuracy {best_accuracy:.3f}")
    model.load_state_dict(best_weights)
    torch.save(best_weights, f"{name}.pt")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()

    # the network that others would download: it knows the digits from 0 to 4
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train_model("pretrain", model, load_data(0), optimizer, args.epochs)

    # phase 1: a new head for the digits from 5 to 9, and nothing else
    model.features.requires_grad_(False)
    model.head = nn.Linear(64, 5)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.05, momentum=0.9)
    train_model("head", model, load_data(5), optimizer, args.epochs)

    # phase 2: all of it, in small steps
    model.features.requires_grad_(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    train_model("all", model, load_data(5), optimizer, args.epochs)


if __name__ == "__main__":
    main()
