"""The scanned digits of scikit-learn, one by one and in batches."""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false
# (scikit-learn has no types: what comes from it is annotated here)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import override


class Digit(NamedTuple):
    """A scanned digit: its pixels between 0 and 1, of shape ``(64,)``, and what it is."""

    pixels: Tensor
    label: int


@dataclass(frozen=True)
class DigitBatch:
    """Several digits: pixels of shape ``(digits, 64)``, and labels of shape ``(digits,)``."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


class Digits(Dataset[Digit]):
    """Every fifth digit is there to test on, the others to learn from."""

    def __init__(self, part: Literal["train", "test"]) -> None:
        scanned: Any = load_digits()
        pixels = torch.tensor(scanned.data, dtype=torch.float32) / 16
        labels = torch.tensor(scanned.target)
        chosen = (torch.arange(len(labels)) % 5 == 0) == (part == "test")
        self._pixels, self._labels = pixels[chosen], labels[chosen]

    def __len__(self) -> int:
        return len(self._labels)

    @override
    def __getitem__(self, index: int) -> Digit:
        return Digit(self._pixels[index], int(self._labels[index]))


def collate(digits: list[Digit]) -> DigitBatch:
    """Make a batch of digits."""
    return DigitBatch(
        pixels=torch.stack([digit.pixels for digit in digits]), labels=torch.tensor([digit.label for digit in digits])
    )
