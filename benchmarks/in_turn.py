"""Microseconds of a training step on several processes, of all loops in turn in the same processes.

Runs as ``python -m benchmarks.in_turn CLOCK TASK LOOP ...`` in each process. Collectives of processes
that share cores take between one and ten times as long from one moment to the next: only runs that follow each other
compare.
"""

from __future__ import annotations

import contextlib
import io
import os
import statistics
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial

import torch
import torch.distributed as dist

from benchmarks.measures import loop_named, time_of_step, time_of_update
from benchmarks.processes import publish
from benchmarks.tasks import TASKS, Task

__all__ = ["is_first_process", "side_by_side", "turns"]

ROUNDS = 9
CLOCKS: dict[str, Callable[[Task, Callable[[Task, int], None]], float]] = {
    "clock": time_of_step,
    "processor": partial(time_of_step, clock=time.process_time),
    "updates": time_of_update,
}
"""The time that passes, the processor time of all threads of this process, and the time from one update to the next."""


@contextlib.contextmanager
def side_by_side() -> Generator[None]:
    """Within the context, loops are measured on one thread and print nothing, together with other processes if any."""
    torch.set_num_threads(1)
    is_alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    if not is_alone:
        dist.init_process_group("gloo")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
    if not is_alone:
        dist.destroy_process_group()  # threads of gloo that live on abort some processes at their end


def turns(loops: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Let each loop have its turn so often, and once before, as round 0, to warm up; all processes at once."""
    for number in range(rounds + 1):
        for loop in loops:
            if dist.is_initialized():
                dist.barrier()
            yield number, loop


def is_first_process() -> bool:
    """Whether this process is the one that tells the figures."""
    return os.environ.get("RANK", "0") == "0"


def main(clock: str, task: str, *loops: str) -> None:
    """Publish the medians."""
    times: dict[str, list[float]] = {loop: [] for loop in loops}
    with side_by_side():
        for _, loop in turns(loops, ROUNDS):
            times[loop].append(CLOCKS[clock](TASKS[task](), loop_named(loop).train))
    if is_first_process():
        publish(**{loop: statistics.median(taken[1:]) for loop, taken in times.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
