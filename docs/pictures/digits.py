"""The network of several pictures: it learns to read the scanned digits that come inside scikit-learn."""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset, random_split
from typing_extensions import override

from pa_core import Trainer

__all__ = ["EPOCHS", "DigitsTrainer", "digits", "digits_trainer"]

EPOCHS = 12


class DigitsTrainer(Trainer):
    """Records the share of digits that are read correctly, beside the losses."""

    @override
    def calculate_eval_batch_loss(self, batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
        output = super().calculate_eval_batch_loss(batch)
        self.log("accuracy", (output["model_outputs"].argmax(dim=1) == batch[1]).float().mean())
        return output


def digits() -> list[Subset[tuple[Tensor, ...]]]:
    """1,400 digits to train on, and 397 to evaluate on."""
    loaded: Any = load_digits()  # pyright: ignore[reportUnknownVariableType]  # it has no types
    pixels = torch.tensor(loaded.data, dtype=torch.float32) / 16
    dataset = TensorDataset(pixels, torch.tensor(loaded.target))
    return random_split(dataset, [1400, 397], generator=torch.Generator().manual_seed(0))


def digits_trainer() -> DigitsTrainer:
    """A trainer that says nothing, with the same weights each time."""
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    return DigitsTrainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[])
