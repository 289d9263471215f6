"""A dataset that becomes longer or shorter while a run goes on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from pa_core import ConfigurationError, Trainer
from pa_core.data import KeyedDataLoader
from tests.small_runs import make_trainer
from tests.support.callbacks import CallAt

EVERYWHERE = pytest.mark.runs_on("one_process", "two_ranks")


def samples(number: int) -> Any:
    """A list of samples, whose number can be changed."""
    return [(torch.full((2,), float(index)), torch.zeros(1)) for index in range(number)]


def trainer_that_changes(dataset: Any, length: int) -> Trainer:
    """A trainer of a line whose callback changes a dataset."""
    change = CallAt("on_training_run_epoch_end", lambda _: dataset.__setitem__(slice(None), samples(length)))
    return make_trainer(Trainer, change, model=nn.Linear(2, 1))


@EVERYWHERE
@pytest.mark.parametrize("length", [16, 32])
def test_training_samples_that_come_or_go_end_the_run(length: int) -> None:
    """New samples would never be seen, and lost ones would be asked for: the error names both lengths."""
    dataset = samples(24)
    trainer = trainer_that_changes(dataset, length)
    with pytest.raises(ConfigurationError, match=rf"{length} samples of list, and 24 when it was made"):
        trainer.train(dataset, 2, per_device_batch_size=4, train_dataloader_kwargs={"num_workers": 0})
    assert trainer.num_epochs_completed == 1


@EVERYWHERE
def test_the_next_run_takes_the_new_length() -> None:
    """Between two runs a dataset may change."""
    dataset = samples(24)
    trainer = trainer_that_changes(dataset, 16)
    trainer.train(dataset, 1, per_device_batch_size=4, train_dataloader_kwargs={"num_workers": 0})
    trainer.train(dataset, 2, per_device_batch_size=4, train_dataloader_kwargs={"num_workers": 0})
    assert trainer.run_history.clock.samples == 32


@EVERYWHERE
def test_evaluation_samples_that_go_end_the_run() -> None:
    """The mean would be that of other samples than in the epoch before."""
    evaluated = samples(24)
    trainer = trainer_that_changes(evaluated, 16)
    with pytest.raises(ConfigurationError, match="16 samples"):
        trainer.train(samples(8), 2, evaluated, train_dataloader_kwargs={"num_workers": 0})


@EVERYWHERE
@pytest.mark.filterwarnings("ignore:A custom loader or sampler")
def test_a_dataloader_may_have_another_length_in_each_epoch() -> None:
    """A custom data loader follows its dataset, as it does without a trainer."""
    dataset = samples(24)
    trainer = trainer_that_changes(dataset, 16)
    trainer.train(DataLoader(dataset, batch_size=4), 2)
    assert trainer.run_history.clock.samples == 40


def test_a_loader_by_itself_tells_as_well() -> None:
    """It is told when the loader is iterated over, with workers or without."""
    dataset = samples(8)
    loader = KeyedDataLoader(dataset, batch_size=4)
    assert len(list(loader)) == 2
    dataset += samples(1)
    with pytest.raises(ConfigurationError, match="9 samples of list"):
        iter(loader)
