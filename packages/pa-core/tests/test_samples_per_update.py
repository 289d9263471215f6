"""An update is a number of samples: batches and accumulation follow from it, on any number of processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader

from pa_core import ConfigurationError, Run, SaveTrainingStateCallback, Trainer
from pa_core.data import KeyedDataLoader
from pa_core.testing import make_regression
from pa_data.errors import DataError
from pa_data.orders import TokenBudget
from tests.support.loops import in_double, network, optimizer_of, train_by_hand, updates_of
from tests.support.pa_core.entries import Entry, on_both_entries, train

DATA = in_double(make_regression(50))
runs_on_all = pytest.mark.runs_on("one_process", "two_ranks")


def trainer_of(model: nn.Module, *callbacks: Any) -> Trainer[nn.Module]:
    """A trainer in double precision."""
    return Trainer(model, nn.MSELoss(), optimizer_of("sgd", model), callbacks)


def assert_same_weights(model: nn.Module, other: nn.Module) -> None:
    """Up to the order in which sums are made."""
    torch.testing.assert_close(model.state_dict(), other.state_dict(), rtol=1e-12, atol=1e-13)


def by_hand(seed: int | None, samples: int, epochs: int = 2) -> nn.Module:
    """The model that a loop over whole updates trains."""
    model = network()
    train_by_hand(model, optimizer_of("sgd", model), updates_of(DATA, seed, epochs, samples))
    return model


@on_both_entries
@runs_on_all
@pytest.mark.parametrize(("samples", "per_device"), [(20, 3), (20, 10), (7, 64), (50, 4), (1, 8)])
def test_updates_are_those_of_as_many_samples(entry: Entry, samples: int, per_device: int) -> None:
    """Whatever a process computes at a time, and the last update of an epoch with what is left."""
    model = network()
    optimizer = optimizer_of("sgd", model)
    trained = train(entry, model, optimizer, DATA, 2, per_device_batch_size=per_device, samples_per_update=samples)
    config = trained.run_config
    assert config.train_total_batch_size == samples
    assert config.num_update_steps_per_epoch == -(-50 // samples)
    assert trained.num_updates_completed == 2 * -(-50 // samples)
    assert config.gradient_accumulation_steps == -(-samples // (per_device * config.num_processes))
    assert_same_weights(model, by_hand(config.seed, samples))


@pytest.mark.parametrize("updates", range(1, 7))
@pytest.mark.parametrize("per_device", [4, 7, 16])
def test_a_run_goes_on_with_other_batches(updates: int, per_device: int, tmp_path: Path) -> None:
    """The state knows of samples alone, so that it resumes where another number computes at a time."""
    states = SaveTrainingStateCallback(tmp_path, save_every_n_steps=updates)
    begun = trainer_of(network(), states)
    begun.train(DATA, 1, max_num_train_steps=updates, per_device_batch_size=3, samples_per_update=20)
    model = network()
    resumed = trainer_of(model)
    resumed.train(DATA, 3, per_device_batch_size=per_device, samples_per_update=20, resume_from=tmp_path)
    assert resumed.num_updates_completed == 9
    assert_same_weights(model, by_hand(begun.run_config.seed, 20, epochs=3))


def test_the_loader_may_say_it() -> None:
    """By its arguments, or as a ``KeyedDataLoader``; another number beside it is refused."""
    for data, options in ((DATA, {"samples_per_update": 20}), (KeyedDataLoader(DATA, 3, samples_per_update=20), None)):
        trainer = trainer_of(network())
        trainer.train(data, 1, train_dataloader_kwargs=options)
        assert (trainer.num_updates_completed, trainer.run_config.train_total_batch_size) == (3, 20)
        with pytest.raises(ConfigurationError, match="samples_per_update=30, and 20 of the loader"):
            trainer.train(data, 1, train_dataloader_kwargs=options, samples_per_update=30)


def test_a_loader_of_the_users_own_is_accumulated() -> None:
    """Its batches are as they are: so many of them make an update."""
    trainer = trainer_of(network())
    trainer.train(DataLoader(DATA, batch_size=5), 1, samples_per_update=20)
    assert trainer.run_config.gradient_accumulation_steps == 4
    assert trainer.num_updates_completed == 3


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"samples_per_update": 0}, "samples_per_update must be a whole number of at least 1, got 0"),
        (
            {"samples_per_update": 20, "per_device_batch_size": 5, "gradient_accumulation_steps": 3},
            r"samples_per_update=20, batches of 5 on 1 process, and gradient_accumulation_steps=3(.|\n)*4 of these",
        ),
        (
            {"train_dataset": DataLoader(DATA, batch_size=8), "samples_per_update": 20},
            r"batches of 8 on 1 process(.|\n)*choose a multiple of 8, or pass a dataset",
        ),
        (
            {"samples_per_update": 51, "train_dataloader_kwargs": {"drop_last": True}},
            r"50 samples, and updates of 51(.|\n)*fewer samples per update",
        ),
        ({"samples_per_update": 20, "order": TokenBudget([1] * 50, max_tokens=9)}, "leave out samples_per_update=20"),
    ],
)
def test_what_does_not_fit_together_is_refused(arguments: dict[str, Any], match: str) -> None:
    """With the three numbers, and the way out."""
    train: Any = trainer_of(network()).train
    with pytest.raises((ConfigurationError, DataError), match=match):
        train(**{"train_dataset": DATA, "num_epochs": 1, **arguments})


def test_a_loop_with_several_updates_of_a_batch_is_refused() -> None:
    """What an update is made of is decided within the loop."""
    model = network()
    with pytest.raises(ConfigurationError, match="leave out samples_per_update or max_updates_per_batch"):
        Run(model, SGD(model.parameters(), lr=0.1), DATA, num_epochs=1, samples_per_update=8, max_updates_per_batch=2)


def test_what_fills_no_update_may_be_left_out() -> None:
    """``drop_last`` is about updates then, so that it leaves out the same on any number of processes."""
    seen: list[Tensor] = []
    trainer = trainer_of(network())

    def noted(samples: list[Any]) -> list[Tensor]:
        batch = [torch.stack(one) for one in zip(*samples, strict=True)]
        seen.append(batch[0])
        return batch

    options = {"drop_last": True, "collate_fn": noted, "num_workers": 0}
    trainer.train(DATA, 1, per_device_batch_size=3, samples_per_update=20, train_dataloader_kwargs=options)
    assert trainer.num_updates_completed == 2
    assert sum(map(len, seen)) == 40
