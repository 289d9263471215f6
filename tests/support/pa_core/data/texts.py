"""A stream of texts of different lengths, and a model that trains on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import Dataset, IterableDataset
from typing_extensions import override

from pa_core import Trainer


class Texts(IterableDataset[tuple[Tensor, Tensor]]):
    """Samples of different lengths, one after the other."""

    def __len__(self) -> int:
        """The number of samples."""
        return 8

    @override
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter([(torch.ones(1 + number), torch.zeros(1)) for number in range(8)])


def pad_to_longest(batch: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Dynamic padding."""
    inputs = nn.utils.rnn.pad_sequence([inputs for inputs, _ in batch], batch_first=True)
    return inputs, torch.stack([target for _, target in batch])


class MeanOf(nn.Module):
    """A model of inputs of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs.mean(1, keepdim=True))
        return outputs


def train_on_texts(trainer_class: type[Trainer], dataset: Dataset[Any]) -> Trainer:
    """Batches of 2."""
    model = MeanOf()
    trainer = trainer_class(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.train(dataset, 1, per_device_batch_size=2, collate_fn=pad_to_longest)
    return trainer
