"""Random streams for the workers of loaders that are not the trainer's own."""

from __future__ import annotations

import os

import torch

from pa_core.data.keyed_random import seed_streams
from pa_core.data.order import mix

__all__ = ["worker_init_fn"]


def worker_init_fn(worker_id: int) -> None:
    """Give a worker streams of its own for python's ``random``, numpy and torch.

    Pass it as ``worker_init_fn`` to a ``DataLoader`` that you make yourself. Where every process of a run was seeded
    alike, torch seeds the first worker of each of them alike too, and all processes augment in step; here the rank is a
    part of the seed. The seed follows from torch's global generator, which decides it as ever.

    Loaders that the trainer makes need it not, as they seed the streams for each sample; there it does no harm.

    Args:
        worker_id: The number of the worker, as the loader passes it.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader
        >>> loader = DataLoader(range(8), batch_size=4, num_workers=2, worker_init_fn=worker_init_fn)
        >>> [batch.tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    # From the environment, as a worker is no member of the process group.
    rank = int(os.environ.get("RANK", "0"))
    seed_streams(mix(torch.initial_seed(), worker_id, rank))
