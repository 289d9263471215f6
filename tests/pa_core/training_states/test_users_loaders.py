"""Loaders of the user's own: where a resumed run goes on in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)
from typing_extensions import override

from pa_core import SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_core.testing import TinyClassifier, make_classification
from tests.pa_core.training_states.small_runs import (
    DrawingDataset,
    InterruptAt,
    Interrupted,
    make_trainer,
    train,
)

DATA = DrawingDataset(52)
BATCHES = list(DataLoader(make_classification(40), batch_size=8))


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Samples that can only be read in their order."""

    def __len__(self) -> int:
        return len(DATA)

    @override
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (DATA[index] for index in range(len(DATA)))


OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "RandomSampler": lambda: {"train_dataloader_kwargs": {"sampler": RandomSampler(DATA), "num_workers": 0}},
    "RandomSampler and workers": lambda: {
        "train_dataloader_kwargs": {"sampler": RandomSampler(DATA), "num_workers": 2, "persistent_workers": False}
    },
    "RandomSampler with a generator": lambda: {
        "train_dataloader_kwargs": {
            "sampler": RandomSampler(DATA, generator=torch.Generator().manual_seed(3)),
            "num_workers": 0,
        }
    },
    "WeightedRandomSampler": lambda: {
        "train_dataloader_kwargs": {
            "sampler": WeightedRandomSampler([1.0, 3.0] * 26, num_samples=52),
            "num_workers": 0,
        }
    },
    "batch sampler": lambda: {
        "train_dataloader_kwargs": {"batch_sampler": BatchSampler(SequentialSampler(DATA), 8, False), "num_workers": 0}
    },
    "IterableDataset": lambda: {"dataset": Stream(), "train_dataloader_kwargs": {"num_workers": 0}},
}


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("update", [4, 7, 10])
def test_a_resumed_run_ends_as_the_uninterrupted_one(tmp_path: Path, kind: str, update: int) -> None:
    """Batches before the position are fetched again from the same random streams, and what follows is the same."""
    expected = train(make_trainer(), **OPTIONS[kind]())
    saving = SaveTrainingStateCallback(tmp_path, save_every_n_steps=1)
    with pytest.raises(Interrupted):
        train(make_trainer(saving, InterruptAt("on_train_step_end", update)), **OPTIONS[kind]())
    resumed = make_trainer(seed=99)
    assert train(resumed, resume_from=tmp_path, **OPTIONS[kind]()) == expected


class TrainerWithList(Trainer):
    """A trainer whose loader is a list of batches."""

    @override
    def create_train_dataloader(self, batch_size: int, train_dl_kwargs: dict[str, Any] | None = None) -> Any:
        return BATCHES


def test_a_list_of_batches_is_gone_on_with_where_it_was_left(tmp_path: Path) -> None:
    """Whatever has a length and can be iterated again is counted."""

    def trainer_of(*callbacks: TrainerCallback) -> TrainerWithList:
        torch.manual_seed(0)
        model = TinyClassifier()
        return TrainerWithList(model, nn.CrossEntropyLoss(), Adam(model.parameters()), callbacks=callbacks)

    whole = trainer_of()
    whole.train(make_classification(40), 2)
    saving = SaveTrainingStateCallback(tmp_path, save_every_n_steps=1)
    with pytest.raises(Interrupted):
        trainer_of(saving, InterruptAt("on_train_step_end", 8)).train(make_classification(40), 2)
    resumed = trainer_of()
    resumed.train(make_classification(40), 2, resume_from=tmp_path)
    assert [value.tolist() for value in resumed.model.parameters()] == [
        value.tolist() for value in whole.model.parameters()
    ]


def test_what_happens_is_said_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """How many batches are fetched again, and what that promises."""
    saving = SaveTrainingStateCallback(tmp_path, save_every_n_steps=1)
    with pytest.raises(Interrupted):
        train(make_trainer(saving, InterruptAt("on_train_step_end", 4)), **OPTIONS["RandomSampler"]())
    train(make_trainer(), resume_from=tmp_path, **OPTIONS["RandomSampler"]())
    assert re.search(r"4 batches of .*RandomSampler.* are fetched again", capsys.readouterr().out)
