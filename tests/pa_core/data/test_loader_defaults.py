"""Defaults of a loader, sized to the machine and the data."""

from __future__ import annotations

import os
import sys

import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from pa_core.data import KeyedDataLoader, default_loader_options, default_num_workers
from tests.pa_core.data.drawing import Drawing


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


def test_what_is_given_wins_and_the_rest_fits_it() -> None:
    """Whatever is chosen, the completed options make a loader."""
    for given in (
        {},
        {"num_workers": 0},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": False},
    ):
        options = default_loader_options(Drawing(10), 1, given)
        assert {name: options[name] for name in given} == given
        loader = KeyedDataLoader(Drawing(10), batch_size=2, **options)
        assert loader.persistent_workers is given.get("persistent_workers", loader.num_workers > 0)
        assert loader.pin_memory is torch.cuda.is_available()
