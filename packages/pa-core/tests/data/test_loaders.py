"""The loaders of a run: their defaults, what they are made with, how many steps they have, and how they end."""

from __future__ import annotations

import copy
import os
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from pa_core import ConfigurationError, Trainer
from pa_core.data import DataLoaderSlice, KeyedDataLoader
from pa_core.data.custom_loader import count_steps
from pa_core.data.loaders import default_num_workers
from tests.small_runs import make_trainer, samples
from tests.support.callbacks import CallAt
from tests.support.drawing import Drawing


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process be bound to some cores")
def test_the_cores_of_this_process_are_shared_between_the_local_processes() -> None:
    """A process that is bound to one core of a large machine starts one worker, not one for each core."""
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(cores)})
        assert default_num_workers(Drawing(10), local_processes=1) == 1
        assert default_num_workers(Drawing(10), local_processes=2) == 0
    finally:
        os.sched_setaffinity(0, cores)
    assert default_num_workers(Drawing(10), local_processes=1) == min(16, len(cores))


def test_data_in_memory_needs_no_workers() -> None:
    """Tensors, and subsets of them, are indexed faster than they are sent from another process."""
    tensors = TensorDataset(torch.zeros(10, 2))
    assert default_num_workers(tensors, local_processes=1) == 0
    assert default_num_workers(Subset(tensors, [1, 2]), local_processes=1) == 0


@pytest.mark.parametrize(
    "given", [{}, {"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": False}]
)
def test_what_is_given_wins_and_the_rest_fits_it(given: dict[str, Any]) -> None:
    """Workers stay from epoch to epoch unless that is asked otherwise, and batches are pinned for an accelerator."""
    trainer = make_trainer()
    trainer.train_dataset = Drawing(10)
    loader = trainer.create_train_dataloader(2, given)
    assert isinstance(loader, KeyedDataLoader)
    assert {name: getattr(loader, name) for name in given} == given
    assert loader.persistent_workers is given.get("persistent_workers", loader.num_workers > 0)
    assert loader.pin_memory is (trainer.device.type == "cuda")


def test_a_custom_sampler_gets_a_plain_loader() -> None:
    """Its order is the sampler's own, and arguments of the trainer that a DataLoader refuses beside it are left out."""
    trainer = make_trainer()
    trainer.train_dataset = samples(8)
    loader = trainer.create_train_dataloader(2, {"sampler": [3, 1, 2, 0]})
    assert isinstance(loader, DataLoader)
    assert not isinstance(loader, KeyedDataLoader)
    assert [int(number) for batch in loader for number in batch[0][:, 0]] == [3, 1, 2, 0]


def test_the_run_config_has_the_arguments_of_the_loaders_of_its_run() -> None:
    """Those of an earlier run are not among them, and a loader that was given has none but knows its batch size."""
    trainer = make_trainer()
    trainer.train(samples(8), 1, samples(4), 2, eval_dataloader_kwargs={"batch_size": 4, "num_workers": 0})
    assert trainer.run_config.train_dl_kwargs["shuffle"] is True
    loaders: list[Any] = [trainer.train_dataloader, trainer.eval_dataloader]
    assert [(len(one.dataset), one.batch_size, len(one), one.device) for one in loaders] == [
        (8, 2, 4, trainer.device),
        (4, 4, 1, trainer.device),
    ]
    assert trainer.run_config.eval_dl_kwargs["num_workers"] == 0
    assert trainer.run_config.eval_per_device_batch_size == 4
    trainer.train(DataLoader(samples(8), batch_size=4), 1)
    assert trainer.run_config.train_dl_kwargs == trainer.run_config.eval_dl_kwargs == {}
    assert trainer.run_config.train_per_device_batch_size == 4


def test_an_evaluation_leaves_the_training_loader_where_it_is() -> None:
    """Whoever iterates over it after ``evaluate()`` gets the order of the epoch that comes next, not of the first."""
    trainer = make_trainer()
    trainer.train(samples(8), 2, samples(4), 4)
    loader = trainer.train_dataloader
    assert isinstance(loader, KeyedDataLoader)
    before = (loader.epoch, loader.position)
    trainer.evaluate()
    assert (loader.epoch, loader.position) == before
    assert before != (0, 0)


def test_the_steps_of_an_epoch_are_those_of_the_shortest_slice() -> None:
    """A loader that is limited twice has as many steps as the lower limit, and no more than without."""
    loader = KeyedDataLoader(samples(8), batch_size=2, num_workers=0)
    assert count_steps(loader) == 4
    assert count_steps(DataLoaderSlice(DataLoaderSlice(loader, 2), 3)) == 2
    assert count_steps(DataLoaderSlice(loader, 9)) == 4
    assert count_steps(["one", "two"]) == 2


@pytest.mark.parametrize(
    ("slice_size", "expected"), [(1, [0]), (3, [0, 1, 2]), (5, [0, 1, 2, 3, 4]), (9, [0, 1, 2, 3, 4])]
)
def test_the_first_batches_are_yielded_each_time(slice_size: int, expected: list[int]) -> None:
    """A slice yields as many batches as its length says, again and again."""
    piece = DataLoaderSlice([0, 1, 2, 3, 4], slice_size)
    assert len(piece) == len(expected)
    assert list(piece) == expected
    assert list(piece) == expected


def test_no_batch_is_loaded_in_vain() -> None:
    """The loader is asked for the batches of the slice and for no other."""
    asked: list[int] = []

    class Loader:
        def __len__(self) -> int:
            return 10

        def __iter__(self) -> Iterator[int]:
            for index in range(10):
                asked.append(index)
                yield index

    assert list(DataLoaderSlice(Loader(), 2)) == [0, 1]
    assert asked == [0, 1]


def test_attributes_are_those_of_the_loader() -> None:
    """What users read of a loader they read of its slice."""
    loader = KeyedDataLoader(TensorDataset(torch.zeros(10)), batch_size=3, device="cpu")
    piece = DataLoaderSlice(loader, slice_size=2)
    assert piece.dataset is loader.dataset
    assert piece.device == torch.device("cpu")
    assert piece.batch_size == 3
    assert piece.wrapped is loader
    assert piece.slice_size == 2
    with pytest.raises(AttributeError, match="no_such_attribute"):
        _ = piece.no_such_attribute


def test_a_slice_can_be_copied_and_pickled() -> None:
    """Forwarding attributes does not stand in the way of copying."""
    piece = DataLoaderSlice([1, 2, 3], 2)
    assert list(copy.deepcopy(piece)) == [1, 2]
    assert list(pickle.loads(pickle.dumps(piece))) == [1, 2]


@pytest.mark.parametrize("slice_size", [0, -1])
def test_an_empty_slice_is_refused(slice_size: int) -> None:
    """The error says what was given and what to pass."""
    with pytest.raises(ConfigurationError, match=rf"slice_size must be .* at least 1, got {slice_size}"):
        DataLoaderSlice([1], slice_size)


EVERYWHERE = pytest.mark.runs_on("one_process", "two_ranks")


def changeable(number: int) -> Any:
    """A list of samples, whose number can be changed."""
    return [(torch.full((2,), float(index)), torch.zeros(1)) for index in range(number)]


def trainer_that_changes(dataset: Any, length: int) -> Trainer:
    """A trainer of a line whose callback changes a dataset."""
    change = CallAt("on_training_run_epoch_end", lambda _: dataset.__setitem__(slice(None), changeable(length)))
    return make_trainer(Trainer, change, model=nn.Linear(2, 1))


@EVERYWHERE
@pytest.mark.parametrize("length", [16, 32])
def test_training_samples_that_come_or_go_end_the_run(length: int) -> None:
    """New samples would never be seen, and lost ones would be asked for: the error names both lengths."""
    dataset = changeable(24)
    trainer = trainer_that_changes(dataset, length)
    with pytest.raises(ConfigurationError, match=rf"{length} samples of list, and 24 when it was made"):
        trainer.train(dataset, 2, per_device_batch_size=4, train_dataloader_kwargs={"num_workers": 0})
    assert trainer.num_epochs_completed == 1


@EVERYWHERE
def test_the_next_run_takes_the_new_length() -> None:
    """Between two runs a dataset may change."""
    dataset = changeable(24)
    trainer = trainer_that_changes(dataset, 16)
    trainer.train(dataset, 1, per_device_batch_size=4, train_dataloader_kwargs={"num_workers": 0})
    trainer.train(dataset, 2, per_device_batch_size=4, train_dataloader_kwargs={"num_workers": 0})
    assert trainer.run_history.clock.samples == 32


@EVERYWHERE
def test_evaluation_samples_that_go_end_the_run() -> None:
    """The mean would be that of other samples than in the epoch before."""
    evaluated = changeable(24)
    trainer = trainer_that_changes(evaluated, 16)
    with pytest.raises(ConfigurationError, match="16 samples"):
        trainer.train(changeable(8), 2, evaluated, train_dataloader_kwargs={"num_workers": 0})


@EVERYWHERE
@pytest.mark.filterwarnings("ignore:A custom loader or sampler")
def test_a_dataloader_may_have_another_length_in_each_epoch() -> None:
    """A custom data loader follows its dataset, as it does without a trainer."""
    dataset = changeable(24)
    trainer = trainer_that_changes(dataset, 16)
    trainer.train(DataLoader(dataset, batch_size=4), 2)
    assert trainer.run_history.clock.samples == 40


def test_a_loader_by_itself_tells_as_well() -> None:
    """It is told when the loader is iterated over, with workers or without."""
    dataset = changeable(8)
    loader = KeyedDataLoader(dataset, batch_size=4)
    assert len(list(loader)) == 2
    dataset += changeable(1)
    with pytest.raises(ConfigurationError, match="9 samples of list"):
        iter(loader)
