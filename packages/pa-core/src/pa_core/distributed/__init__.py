"""Several processes: what they tell each other, decide together and exchange, and how they start, fail and end.

What is imported from here works without a trainer, and on one process without a process group.
"""

from __future__ import annotations

from pa_core.distributed.collectives import (
    agree_on_integer,
    broadcast_buffers,
    gather,
    gather_objects,
    num_local_processes,
    num_processes,
    rank,
    runs_on_gloo,
    sum_over_processes,
    synchronising_wrapper,
    values_of_all,
)

__all__ = [
    "agree_on_integer",
    "broadcast_buffers",
    "gather",
    "gather_objects",
    "num_local_processes",
    "num_processes",
    "rank",
    "runs_on_gloo",
    "sum_over_processes",
    "synchronising_wrapper",
    "values_of_all",
]
