"""The trainer with its default callbacks, which shards the model as accelerate's plugin asks."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from benchmarks.loops.by_accelerate import accelerator
from benchmarks.tasks import Task
from pa_core import DEFAULT_CALLBACKS, Trainer

__all__ = ["train"]


class ShardingTrainer(Trainer):
    """Shards its model."""

    @override
    def create_accelerator(self) -> Any:
        from accelerate.utils import FullyShardedDataParallelPlugin

        return accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))


def train(task: Task, num_epochs: int) -> None:
    """Train on several processes."""
    ShardingTrainer(task.model, task.loss_func, task.optimizer, DEFAULT_CALLBACKS).train(
        task.dataset, num_epochs, per_device_batch_size=task.batch_size
    )
