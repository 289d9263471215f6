"""What pa_checkpoint uses of torch that has no public name: the installed version has it, and it does its job."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from pa_checkpoint import CheckpointError
from pa_checkpoint._torch import local_shape_and_offset, store_of_processes, version_of


def test_version_of() -> None:
    """A change in place is noted."""
    tensor = torch.zeros(2)
    before = version_of(tensor)
    tensor.add_(1)
    assert version_of(tensor) > before


def test_a_version_without_a_name_says_which_versions_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it lacks is named, and what to install."""
    monkeypatch.delattr("torch.distributed.tensor._utils._compute_local_shape_and_global_offset")
    with pytest.raises(CheckpointError, match=r"without [\w.]*_compute_local[\s\S]*pip install \"torch=="):
        local_shape_and_offset((5, 2), (2,), (0,), ())


def test_local_shape_and_offset() -> None:
    """The piece of each process follows from the shape alone."""
    from torch.distributed.tensor import Shard

    found = [local_shape_and_offset((5, 2), (2,), (rank,), (Shard(0),)) for rank in range(2)]
    assert found == [((3, 2), (0, 0)), ((2, 2), (3, 0))]


@pytest.mark.runs_on("two_ranks")
def test_store_of_processes() -> None:
    """What one process writes, the other one reads."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    store_of_processes().set(f"written by {dist.get_rank()}", "hello")
    assert store_of_processes().get(f"written by {1 - dist.get_rank()}") == b"hello"
