"""Data that are changed at random when they are fetched, and the orders in which they come."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, IterableDataset, Subset
from typing_extensions import override

from pa_data.orders import ClassBalanced, Curriculum, LengthGrouped, Mixture, Order, Shuffled, Weighted
from tests.support.pa_core.any_processes.configuration import Configuration
from tests.support.pa_core.any_processes.models import CLASSES, FEATURES, WORDS

__all__ = ["Sequences", "Stream", "collate", "ordered", "read"]


class Sequences(Dataset[tuple[Tensor, Tensor]]):
    """Sequences of 4 to 7 tokens or vectors, each changed by a draw from the streams of Python, numpy and torch.

    Args:
        num_samples: How many there are.
        of_tokens: Whether they are sequences of tokens.
    """

    def __init__(self, num_samples: int, *, of_tokens: bool) -> None:
        generator = torch.Generator().manual_seed(num_samples)
        shape, high = ((num_samples, 7), WORDS) if of_tokens else ((num_samples, 7, FEATURES), 100)
        drawn = torch.randint(high, shape, generator=generator)
        self.inputs = drawn if of_tokens else drawn / 50 - 1
        self.lengths = torch.randint(4, 8, (num_samples,), generator=generator)
        self.targets = torch.randint(CLASSES, (num_samples,), generator=generator)

    def __len__(self) -> int:
        return len(self.inputs)

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs = self.inputs[index, : self.lengths[index]].clone()
        drawn = random.random() + float(np.random.rand()) + float(torch.rand(()))
        if inputs.is_floating_point():
            inputs += drawn
        else:
            inputs[int(drawn)] = int(10 * drawn)
        return inputs, self.targets[index]


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Sequences that come at random out of a buffer, from another one on in each epoch that it is told of.

    Args:
        sequences: The sequences.
    """

    def __init__(self, sequences: Sequences) -> None:
        self.sequences = sequences
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.sequences)

    def set_epoch(self, epoch: int) -> None:
        """Choose where the next iteration begins."""
        self.epoch = epoch

    @override
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        buffer: list[int] = []
        for number in range(len(self)):
            buffer.append((number + 3 * self.epoch) % len(self))
            if len(buffer) > 3:
                yield self.sequences[buffer.pop(random.randrange(len(buffer)))]
        while buffer:
            yield self.sequences[buffer.pop(random.randrange(len(buffer)))]


def read(configuration: Configuration, num_samples: int) -> Dataset[Any]:
    """Return the sequences of a configuration, as a dataset or as a stream."""
    data = Sequences(num_samples, of_tokens=configuration.has_embedding)
    return Stream(data) if configuration.has_streams else data


def collate(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Fill sequences up to the longest of their batch."""
    inputs, targets = zip(*samples, strict=True)
    return pad_sequence(list(inputs), batch_first=True), torch.stack(list(targets))


def ordered(configuration: Configuration) -> tuple[Dataset[Any], Order | None]:
    """Return the training data of a configuration, and the order that a run is given."""
    data = Sequences(configuration.num_samples, of_tokens=configuration.has_embedding)
    number = torch.arange(len(data))
    if configuration.has_streams:
        return Stream(data), None
    if configuration.order == "mixture":
        parts = {"all": data, "first": Subset(data, range(3))}
        return Mixture(parts, weights={"all": 3, "first": 1}, num_samples=len(data)), None
    orders: dict[str, Order] = {
        "shuffled": Shuffled(),
        "weighted": Weighted(1.0 + number % 3),
        "class balanced": ClassBalanced(data.targets),
        "curriculum": Curriculum(lambda epoch: number < len(data) * (epoch + 2) // 3),
        "length grouped": LengthGrouped(data.lengths, group_size=2 * configuration.micro_batch),
    }
    return data, orders[configuration.order]
