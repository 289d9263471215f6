"""Fine-tune a network on digits that it has not seen: its head first, then all of it; the best weights are kept."""

import argparse
from functools import partial
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import Subset, TensorDataset, random_split

from pa_core import DEFAULT_CALLBACKS, SaveBestModelCallback, SaveTrainingStateCallback, Trainer


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


class DigitsTrainer(Trainer):
    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_eval_batch_loss(batch)
        self.log("accuracy", (output["model_outputs"].argmax(dim=1) == batch[1]).float().mean())
        return output


def train_model(name: str, model: nn.Module, data: dict[str, Subset[Any]], optimizer: torch.optim.Optimizer,
                num_epochs: int) -> None:
    criterion = nn.CrossEntropyLoss()
    best = SaveBestModelCallback(f"{name}.pt", watch_metric="eval_accuracy_epoch", greater_is_better=True)
    save = SaveTrainingStateCallback(f"states/{name}", save_every_n_epochs=1)
    trainer = DigitsTrainer(model, criterion, optimizer, callbacks=[*DEFAULT_CALLBACKS, best, save])
    trainer.train(data["train"], num_epochs, data["val"], per_device_batch_size=32, step_scheduler="epoch",
                  create_scheduler_fn=partial(StepLR, step_size=4, gamma=0.3),
                  resume_from=f"states/{name}", resume_missing="start")
    trainer.print(f"{name}: best accuracy {best.best.value:.3f}")


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
