"""Samplers that an order replaces: a run with one of them says which, and trains as before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from typing_extensions import override

from pa_core import Run, Trainer, orders
from pa_core.testing import make_regression

DATA: TensorDataset = make_regression(12)
WEIGHTS = torch.ones(12).tolist()


class LengthGroupedSampler(Sampler[int]):
    """Of the name of that of a well-known library."""

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(range(12))

    def __len__(self) -> int:
        return 12


class ImbalancedDatasetSampler(LengthGroupedSampler):
    """As above."""


class GroupedBatchSampler(BatchSampler):
    """Batches that are made in a way of the user's own."""


def said(capsys: pytest.CaptureFixture[str], **kwargs: Any) -> str:
    """What two runs print, one of `train()` and one of `Run`."""
    model = nn.Linear(4, 1)
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.train(DATA, 2, train_dataloader_kwargs=kwargs)
    assert trainer.num_updates_completed == 4
    of_train = capsys.readouterr().out
    if "batch_sampler" not in kwargs:
        kwargs["batch_size"] = 8
    with Run(model, SGD(model.parameters(), lr=0.1), DataLoader(DATA, **kwargs), num_epochs=1) as run:
        for inputs, targets in run.batches():
            run.backward((model(inputs) - targets).square().mean())
            run.step()
    assert capsys.readouterr().out == of_train
    return of_train


@pytest.mark.parametrize(
    ("sampler", "instead"),
    [
        (WeightedRandomSampler(WEIGHTS, 12), "order=Weighted(weights, num_samples=12)"),
        (WeightedRandomSampler(WEIGHTS, 11, False), "order=Weighted(weights, replacement=False, num_samples=11)"),
        (RandomSampler(DATA, replacement=True), "order=Weighted([1.0] * len(dataset), num_samples=12)"),
        (SubsetRandomSampler(range(11)), "Subset(dataset, indices)"),
        (DistributedSampler(DATA, 1, 0), "no sampler: the trainer divides"),
        (DistributedSampler(DATA, 1, 0, shuffle=False), "order=Sequential()"),
        (LengthGroupedSampler(), "order=TokenBudget(lengths, max_tokens=...)"),
        (ImbalancedDatasetSampler(), "order=ClassBalanced(labels)"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_sampler_that_an_order_replaces(
    sampler: Sampler[int], instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One printed line has the order to pass instead; it exists."""
    lines = said(capsys, sampler=sampler).splitlines()
    assert [line for line in lines if type(sampler).__name__ in line and instead in line] == lines
    assert len(lines) == 1
    for name in re.findall(r"order=(\w+)", instead):
        assert hasattr(orders, name)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"sampler": SequentialSampler(DATA)},
        {"sampler": RandomSampler(DATA)},
        {"batch_sampler": GroupedBatchSampler(WeightedRandomSampler(WEIGHTS, 12), 8, False)},
    ],
)
def test_a_sampler_that_none_replaces(kwargs: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """A plain sampler, and batches that are made in an unknown way, are used without a word."""
    assert said(capsys, **kwargs) == ""
