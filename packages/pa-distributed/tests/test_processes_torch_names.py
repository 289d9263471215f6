"""The private names of torch do what is expected of them."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

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


def test_after_backward_pass() -> None:
    """It is called once all gradients of the pass are there."""
    first, last = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    seen: list[bool] = []

    def ask(_gradient: Tensor) -> None:
        names.after_backward_pass(lambda: seen.append(first.grad is not None and last.grad is not None))

    output: Any = first * 2
    output.register_hook(ask)
    torch.autograd.backward(output * last)
    assert seen == [True]


def test_ignored_by_ddp() -> None:
    """The names are those that torch was told."""
    layer = nn.Linear(2, 1)
    cast("Any", DistributedDataParallel)._set_params_and_buffers_to_ignore_for_model(layer, ["bias"])
    assert names.ignored_by_ddp(layer) == {"bias"}
