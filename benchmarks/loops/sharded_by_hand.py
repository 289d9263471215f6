"""The loop of PyTorch's tutorial on `fully_shard`: each layer of a transformer is a block, and so is what is left."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DistributedSampler

from benchmarks.loops.by_hand import train_epoch
from benchmarks.models import layers_of
from benchmarks.tasks import Task, training_loader

__all__ = ["train"]


def train(task: Task, num_epochs: int) -> None:
    """Train on several processes, each of which has a piece of every parameter."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in (*layers_of(task.model), task.model):
        fully_shard(module, mesh=mesh)
    # A script makes its optimizer after sharding. That of the task would keep the whole parameters in memory.
    (group,) = task.optimizer.param_groups
    group["params"] = list(task.model.parameters())
    sampler: DistributedSampler[Any] = DistributedSampler(task.dataset)
    loader = training_loader(task, sampler)
    for epoch in range(num_epochs):
        sampler.set_epoch(epoch)
        train_epoch(task, task.model, loader)
