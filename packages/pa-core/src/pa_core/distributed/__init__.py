"""Functions for several processes: collectives, decorators, gathering and launching from notebooks.

The public names work without a trainer, and on one process without a process group.
"""

from __future__ import annotations

from pa_core.distributed.collectives import (
    broadcast_buffers,
    broadcast_weights,
    connect,
    gather,
    gather_objects,
    num_processes,
    rank,
    remove_padding,
    sum_over_processes,
)

__all__ = [
    "broadcast_buffers",
    "broadcast_weights",
    "connect",
    "gather",
    "gather_objects",
    "num_processes",
    "rank",
    "remove_padding",
    "sum_over_processes",
]
