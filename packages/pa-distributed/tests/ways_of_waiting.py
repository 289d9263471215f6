"""A script: a loop of one's own on two ranks, once for each way to wait; rank 1 stays away from the fourth step."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import torch
import torch._dynamo  # pyright: ignore[reportUnusedImport]  # here, or each rank would import it
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from pa_distributed import HangDetector, prepare_gloo
from tests.support.pairs import run_pairs

Way = Callable[[], object]
many: Any = dist
"""Torch annotates few of these functions."""


def numbers() -> torch.Tensor:
    """What is exchanged."""
    return torch.ones(8)


def other() -> int:
    """The other rank."""
    return 1 - dist.get_rank()


def work() -> Any:
    """A collective that goes on while something else is done."""
    return many.all_reduce(numbers(), async_op=True)


def one_of_the_two() -> Any:
    """A message from rank 1 to rank 0."""
    return many.irecv(numbers(), 1) if dist.get_rank() == 0 else many.isend(numbers(), 0)


def both_ways() -> object:
    """Messages in both directions."""
    sent, received = many.P2POp(dist.isend, numbers(), other()), many.P2POp(dist.irecv, numbers(), other())
    return [one.wait() for one in many.batch_isend_irecv([sent, received])]


def is_asked_again_and_again() -> None:
    """A collective whose end is looked for."""
    begun = work()
    while not begun.is_completed():
        time.sleep(0.01)


def backward_pass(model: Any) -> Way:
    """A backward pass that exchanges gradients."""
    return lambda: model(numbers()).sum().backward()


def in_a_thread(pool: ThreadPoolExecutor) -> Way:
    """A collective that another thread waits in."""
    return lambda: pool.submit(lambda: work().wait()).result()


def in_a_group(group: object) -> Way:
    """A collective of a group of one's own."""
    return lambda: many.all_reduce(numbers(), group=group, async_op=True).wait()


def reads_the_store() -> object:
    """A key that the other rank would write."""
    store = cast("Any", dist.distributed_c10d)._get_default_store()
    return store.get("never") if dist.get_rank() == 0 and watch.steps == 3 else work().wait()


WAYS: dict[str, Callable[[], Way]] = {
    "Work.wait": lambda: lambda: work().wait(),
    "Future.wait": lambda: lambda: work().get_future().wait(),
    "Work.is_completed": lambda: is_asked_again_and_again,
    "functional collective": lambda: lambda: functional.all_reduce(numbers(), "sum", cast("Any", dist.group.WORLD)) + 1,
    "irecv": lambda: lambda: one_of_the_two().wait(),
    "batch_isend_irecv": lambda: both_ways,
    "DistributedDataParallel": lambda: backward_pass(DistributedDataParallel(nn.Linear(8, 8))),
    "fully_shard": lambda: backward_pass(fully_shard(nn.Linear(8, 8))),
    "group": lambda: in_a_group(many.new_group()),
    "thread": lambda: in_a_thread(ThreadPoolExecutor(1)),
    "store": lambda: reads_the_store,
    "all_reduce": lambda: lambda: many.all_reduce(numbers()),
}

watch = HangDetector(4.0)


def loop(make: Callable[[], Way], rank: int) -> None:
    """Make five steps.

    Args:
        make: Returns how the ranks exchange.
        rank: The rank of this process.
    """
    many.init_process_group("gloo")
    prepare_gloo()
    exchange = make()
    with watch.run():
        for _ in range(5):
            while watch.steps == 3 and rank == 1:
                sum(range(1000))  # as one that evaluates
                time.sleep(0.01)
            exchange()
            watch.step()


if __name__ == "__main__":
    run_pairs({name: partial(loop, make) for name, make in WAYS.items()}, list(WAYS), 45.0)
