"""What only a CUDA device shows: copies that go on while it computes, and the memory that it needs for an export.

Runs as ``python -m benchmarks.on_device copies``, or ``export`` under ``torchrun``.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.measures import side_by_side
from benchmarks.processes import in_turn, publish
from benchmarks.tasks import DEVICE, IS_DRY, TASKS
from benchmarks.window import ON_CUDA, synchronize
from pa_core import Trainer
from pa_data._fetching import prefetched

BATCHES, ROUNDS = 30, 5
MEBIBYTES, WIDTH = (2, 64) if IS_DRY else (256, 8192)


def copies() -> None:
    """Publish the milliseconds of a batch and four matrix products, which take about as long as its copy."""
    in_memory = [torch.empty(MEBIBYTES * 2**18, pin_memory=ON_CUDA) for _ in range(2)]
    there = [tensor.to(DEVICE) for tensor in in_memory]
    weights = torch.rand(WIDTH, WIDTH, device=DEVICE, dtype=torch.bfloat16)
    kinds: dict[str, Callable[[], Iterable[Tensor]]] = {
        "in_turn": lambda: (batch.to(DEVICE, non_blocking=True) for batch in in_memory * (BATCHES // 2)),
        "there_already": lambda: there * (BATCHES // 2),
        "ahead": lambda: prefetched(iter(in_memory * (BATCHES // 2)), DEVICE) if ON_CUDA else there,
    }
    publish(**in_turn({kind: partial(_compute, make, weights) for kind, make in kinds.items()}, ROUNDS, warmup=1))


def _compute(make_batches: Callable[[], Iterable[Tensor]], weights: Tensor) -> float:
    synchronize()
    started = time.perf_counter()
    for batch in make_batches():
        batch[:1].add_(1)
        for _ in range(4):
            weights @ weights  # pyright: ignore[reportUnusedExpression]  # keeps the device busy
    synchronize()
    return (time.perf_counter() - started) / BATCHES * 1e3


def export() -> None:
    """Publish the MiB on the device beyond those of a sharded model while it is exported."""
    with side_by_side(), tempfile.TemporaryDirectory() as folder:
        task = TASKS["sharded_transformer"]()
        trainer = Trainer(task.model, task.loss_func, task.optimizer, callbacks=[], mixed_precision="no")
        trainer.train(task.dataset, 1, per_device_batch_size=task.batch_size)
        synchronize()
        before = torch.cuda.memory_allocated() if ON_CUDA else 0
        if ON_CUDA:
            torch.cuda.reset_peak_memory_stats()
        trainer.save_model(Path(folder) / "exported")
        peak = torch.cuda.max_memory_allocated() if ON_CUDA else 0
    largest = max(parameter.numel() * parameter.element_size() for parameter in task.model.parameters())
    publish(the_largest_tensor=largest / 2**20, the_export=(peak - before) / 2**20)


if __name__ == "__main__":
    {"copies": copies, "export": export}[sys.argv[1]]()
