"""What is measured, in a process that does nothing else: each function returns one figure.

Runs as ``python -m benchmarks.measures MEASURE TASK LOOP``.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sized
from dataclasses import replace
from typing import Protocol, cast

import torch

from benchmarks.processes import publish
from benchmarks.tasks import TASKS, Task

__all__ = ["MEASURES", "loop_named", "memory", "steps_of_epoch", "time_of_step", "time_of_update"]

REPEATS = 3


class Loop(Protocol):
    """The module of one way to train."""

    def train(self, task: Task, num_epochs: int) -> None:
        """Train for a number of epochs."""

    def evaluate(self, task: Task, times: int) -> None:
        """Evaluate the whole dataset a number of times."""


def loop_named(name: str) -> Loop:
    """Return the module of one way to train."""
    return cast("Loop", importlib.import_module(f"benchmarks.loops.{name}"))


def step(make_task: Callable[[], Task], loop: Loop) -> float:
    """Microseconds of a training step: a whole run, its preparation and the edges of its epochs included."""
    return _median_of_step(make_task, loop.train)


def evaluation(make_task: Callable[[], Task], loop: Loop) -> float:
    """Microseconds of a step of an evaluation."""
    return _median_of_step(make_task, loop.evaluate)


def _median_of_step(make_task: Callable[[], Task], run: Callable[[Task, int], None]) -> float:
    run(make_task(), 1)
    return statistics.median(time_of_step(make_task(), run) for _ in range(REPEATS))


def time_of_step(task: Task, run: Callable[[Task, int], None], clock: Callable[[], float] = time.perf_counter) -> float:
    """Microseconds of a step of one run over the epochs of the task."""
    start = clock()
    run(task, task.num_epochs)
    return (clock() - start) / (task.num_epochs * steps_of_epoch(task)) * 1e6


def time_of_update(task: Task, run: Callable[[Task, int], None]) -> float:
    """Microseconds from one update to the next of a run over the epochs of the task, without its start and its end."""
    updated: list[float] = []

    def update(*_: object) -> None:
        updated.append(time.perf_counter())

    task.optimizer.register_step_post_hook(update)
    run(task, task.num_epochs)
    return (updated[-1] - updated[0]) / (len(updated) - 1) * 1e6


def steps_of_epoch(task: Task) -> int:
    """The number of updates of an epoch where each batch makes one."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    return -(-len(cast("Sized", task.dataset)) // (task.batch_size * processes))


def edge(make_task: Callable[[], Task], loop: Loop) -> float:
    """Microseconds from the end of the last update of an epoch to the first call of the model in the next one."""
    loop.train(make_task(), 1)
    task = replace(make_task(), num_epochs=100)
    begun: list[float] = []
    updated: list[float] = []

    def begin(*_: object) -> None:
        begun.append(time.perf_counter())

    def update(*_: object) -> None:
        updated.append(time.perf_counter())

    task.model.register_forward_pre_hook(begin)
    task.optimizer.register_step_post_hook(update)
    loop.train(task, task.num_epochs)
    firsts = range(steps_of_epoch(task), len(begun), steps_of_epoch(task))
    return statistics.median(begun[first] - updated[first - 1] for first in firsts) * 1e6


def memory(make_task: Callable[[], Task], loop: Loop) -> float:
    """MiB that the process has taken up at most, after three epochs."""
    loop.train(make_task(), 3)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


MEASURES: dict[str, Callable[[Callable[[], Task], Loop], float]] = {
    "edge": edge,
    "evaluation": evaluation,
    "memory": memory,
    "step": step,
}


def main(measure: str, task: str, loop: str) -> None:
    """Measure, with everything that the loop itself prints thrown away."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        figure = MEASURES[measure](TASKS[task], loop_named(loop))
    publish(**{loop: figure})


if __name__ == "__main__":
    main(*sys.argv[1:])
