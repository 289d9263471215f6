"""The loop by hand with a batch sampler that puts samples of like length together, as people write it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler
from typing_extensions import override

from benchmarks.loops.by_hand import train_epoch
from benchmarks.tasks import MAX_TOKENS, Sentences, Task, pad

__all__ = ["train"]


class Buckets(Sampler[list[int]]):
    """Sorts by length, cuts by the number of tokens, and shuffles the batches."""

    def __init__(self, lengths: Tensor, max_tokens: int) -> None:
        self.lengths: list[int] = lengths.tolist()
        self.max_tokens = max_tokens

    @override
    def __iter__(self) -> Iterator[list[int]]:
        shuffled: list[int] = torch.randperm(len(self.lengths)).tolist()
        shuffled.sort(key=self.lengths.__getitem__)
        batches: list[list[int]] = [[]]
        for index in shuffled:
            if (len(batches[-1]) + 1) * self.lengths[index] > self.max_tokens:
                batches.append([])
            batches[-1].append(index)
        order: list[int] = torch.randperm(len(batches)).tolist()
        return (batches[number] for number in order)


def train(task: Task, num_epochs: int) -> None:
    """One update for each batch."""
    dataset = cast("Sentences", task.dataset)
    loader = DataLoader(dataset, batch_sampler=Buckets(dataset.lengths, MAX_TOKENS), collate_fn=pad)
    for _ in range(num_epochs):
        train_epoch(task, task.model, loader)
