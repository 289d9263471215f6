"""The loaders of a run: their defaults, what they are made with, how many steps they have, and how they end."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from pa_core.data import DataLoaderSlice, KeyedDataLoader
from pa_core.data.custom_loader import count_steps
from pa_core.data.loaders import default_num_workers
from tests.small_runs import make_trainer, samples
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
