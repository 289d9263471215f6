"""The number of processes of a training, and the number of this process."""

from __future__ import annotations

import torch.distributed as dist


def num_processes() -> int:
    """Return the number of processes, or 1 if there is no process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, or 0 if there is no process group."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
