"""Microseconds of a training step on several processes, of all loops in turn in the same processes.

Runs as ``python -m tests.benchmarks.in_turn TASK LOOP ...`` in each process. Collectives of processes that share cores
take between one and ten times as long from one moment to the next: only runs that follow each other compare.
"""

from __future__ import annotations

import contextlib
import io
import os
import statistics
import sys

import torch
import torch.distributed as dist

from tests.benchmarks.measures import loop_named, time_of_step
from tests.benchmarks.processes import publish
from tests.benchmarks.tasks import TASKS

ROUNDS = 9


def main(task: str, *loops: str) -> None:
    """Publish the medians."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    times: dict[str, list[float]] = {loop: [] for loop in loops}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for _ in range(ROUNDS + 1):
            for loop in loops:
                dist.barrier()
                times[loop].append(time_of_step(TASKS[task](), loop_named(loop).train))
    dist.destroy_process_group()  # threads of gloo that live on abort some processes at their end
    if os.environ["RANK"] == "0":
        publish(**{loop: statistics.median(taken[1:]) for loop, taken in times.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
