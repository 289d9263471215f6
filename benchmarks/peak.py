"""MiB that a process takes up at most, where several train together: of the one that takes up most.

Runs as ``python -m benchmarks.peak TASK LOOP`` in each process.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

from benchmarks.in_turn import is_first_process, side_by_side
from benchmarks.measures import loop_named, memory
from benchmarks.processes import publish
from benchmarks.tasks import TASKS

__all__: list[str] = []


def main(task: str, loop: str) -> None:
    """Publish the peak of one loop."""
    with side_by_side():
        peak = torch.tensor(memory(TASKS[task], loop_named(loop)))
        dist.all_reduce(peak, dist.ReduceOp.MAX)
    if is_first_process():
        publish(**{loop: peak.item()})


if __name__ == "__main__":
    main(*sys.argv[1:])
