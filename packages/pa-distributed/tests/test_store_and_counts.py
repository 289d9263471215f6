"""The private names of torch do what is expected of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from pa_distributed import _torch as names


@pytest.mark.runs_on("two_ranks")
def test_store_of_processes() -> None:
    """What one process writes, the other one reads."""
    store = names.store_of_processes()
    store.set(f"test of names {dist.get_rank()}", "here")
    assert store.get(f"test of names {1 - dist.get_rank()}") == b"here"


@pytest.mark.runs_on("two_ranks")
def test_collectives_begun() -> None:
    """Each exchange of all processes counts."""
    before = names.collectives_begun()
    dist.barrier()
    assert names.collectives_begun() > before


@pytest.mark.runs_on("two_ranks")
def test_collectives_begun_in_all_groups() -> None:
    """Each exchange of a part of the processes counts."""
    group: Any = dist.new_group([0, 1])
    before = names.collectives_begun_in_all_groups()
    dist.barrier(group=group)
    assert names.collectives_begun_in_all_groups() > before
    dist.destroy_process_group(group)


@pytest.mark.runs_on("two_ranks")
def test_seconds_until_timeout() -> None:
    """The processes wait for each other for half an hour."""
    assert names.seconds_until_timeout() == 1800.0
