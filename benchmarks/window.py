"""Looking at the steady part of a training, between two updates, in the same way whichever loop trains."""

from __future__ import annotations

import gc
import math
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Sized
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import NamedTuple, cast

import torch

from benchmarks.tasks import DEVICE, Task

__all__ = ["ON_CUDA", "Seen", "counting_calls", "counting_warnings", "look_at", "steps_of_epoch", "synchronize"]

WARMUP = 5
"""Updates before those that are looked at: the choice of algorithms and the first allocations."""
ON_CUDA = DEVICE.type == "cuda"


class Seen(NamedTuple):
    """What some updates took, from the end of one to the end of another.

    Attributes:
        updates: How many there were.
        seconds: Their time.
        peak_bytes: The most memory that tensors took on the device meanwhile, beyond what was taken before the run.
    """

    updates: int
    seconds: float
    peak_bytes: int


def steps_of_epoch(task: Task) -> int:
    """The number of steps of an epoch on each process."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    return math.ceil(len(cast("Sized", task.dataset)) / (task.batch_size * processes))


def look_at(
    make_task: Callable[[], Task],
    train: Callable[[Task, int], None],
    look: AbstractContextManager[object] | None = None,
    share: float = 1.0,
) -> Seen:
    """Train over the epochs of a new task, and look at its updates, without those that begin and end the run.

    Args:
        make_task: Makes what is trained.
        train: The loop.
        look: A context in which the updates are made.
        share: Of all updates that can be looked at.

    Raises:
        RuntimeError: The loop made fewer updates.
    """
    gc.collect()
    bytes_before = torch.cuda.memory_allocated() if ON_CUDA else 0
    task = make_task()
    # So that no loop is already without a batch to prepare when it ends; the scaler of fp16 may skip updates.
    spare = 12 if task.mixed_precision == "fp16" else 2
    made = task.num_epochs * math.ceil(steps_of_epoch(task) / task.accumulation)
    updates = max(1, int(share * (made - WARMUP - spare)))
    looking = ExitStack()
    count, started, seen = 0, 0.0, None

    def on_step(*_: object) -> None:
        nonlocal count, started, seen
        count += 1
        if count == WARMUP:
            synchronize()
            if ON_CUDA:
                torch.cuda.reset_peak_memory_stats()
            if look is not None:
                looking.enter_context(look)
            started = time.perf_counter()
        elif count == WARMUP + updates:
            looking.close()
            synchronize()
            peak = torch.cuda.max_memory_allocated() if ON_CUDA else bytes_before
            seen = Seen(updates, time.perf_counter() - started, peak - bytes_before)

    task.optimizer.register_step_post_hook(on_step)
    with looking:
        train(task, task.num_epochs)
    if seen is None:
        message = f"the loop ended after {count} updates, before its update {WARMUP + updates}"
        raise RuntimeError(message)
    return seen


def synchronize() -> None:
    """Wait until the device has done all that was asked of it."""
    if ON_CUDA:
        torch.cuda.synchronize()


@contextmanager
def counting_calls(counts: Counter[str]) -> Generator[None]:
    """Within the context, count the calls of CUDA by name, as torch's profiler sees them."""
    with torch.profiler.profile() as profile:
        yield
    counts.update({str(event.key): int(event.count) for event in profile.key_averages()})


@contextmanager
def counting_warnings(counts: Counter[str]) -> Generator[None]:
    """Within the context, count the operations that torch warns of, as they wait for the device."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if ON_CUDA:
            torch.cuda.set_sync_debug_mode("warn")
        yield
        if ON_CUDA:
            torch.cuda.set_sync_debug_mode("default")
    counts["waits"] += sum("synchronizing" in str(warning.message) for warning in caught)
