"""Workers of a DataLoader that a script makes itself: a change of the dataset that does not reach them is said."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from pa_core import Trainer, TrainerCallback


@pytest.fixture(autouse=True)
def ended_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Workers end with their loader, which a trainer holds in a circle of references."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)  # torch would wait for 5 s
    yield
    gc.collect()


class Curriculum(Dataset[tuple[Tensor, Tensor]]):
    """Samples of a level."""

    def __init__(self) -> None:
        self.level = 0

    def __len__(self) -> int:
        return 4

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.tensor([float(self.level)]), torch.tensor([0.0])


class Harder(TrainerCallback[Any]):
    """Raises the level of a dataset after each epoch."""

    def __init__(self, *datasets: Curriculum) -> None:
        self.datasets = datasets

    @override
    def on_training_run_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
        for dataset in self.datasets:
            dataset.level += 1


def messages_of(loader: DataLoader[Any], *changed: Curriculum, eval_loader: DataLoader[Any] | None = None) -> list[str]:
    """What a training of three epochs says about workers."""
    model = nn.Linear(1, 1)
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[Harder(*changed)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train(loader, 3, eval_loader)
    return [str(one.message) for one in caught if "copies of" in str(one.message)]


@pytest.mark.parametrize("evaluates", [False, True])
def test_a_change_that_persistent_workers_do_not_see_is_said_once(evaluates: bool) -> None:
    """The warning names the attribute and both ways out, in training and in evaluation."""
    dataset, same = Curriculum(), DataLoader(Curriculum(), 2)
    loader = DataLoader(dataset, 2, num_workers=1, persistent_workers=True)
    said = messages_of(same, dataset, eval_loader=loader) if evaluates else messages_of(loader, dataset)
    assert len(said) == 1
    assert "dataset.level" in said[0]
    assert "persistent_workers=False" in said[0]
    assert "pass the dataset" in said[0]


@pytest.mark.parametrize(
    ("options", "changes"),
    [({"num_workers": 1, "persistent_workers": True}, False), ({"num_workers": 1}, True), ({}, True)],
)
def test_nothing_is_said_where_the_copies_are_as_the_dataset(options: dict[str, Any], changes: bool) -> None:
    """Nothing has changed, or workers are started in each epoch, or there are none."""
    dataset = Curriculum()
    assert messages_of(DataLoader(dataset, 2, **options), *[dataset] * changes) == []
