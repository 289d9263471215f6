"""Looking at the steady part of a training, between two updates, in the same way whichever loop trains."""

from __future__ import annotations

import gc
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch.optim import AdamW, Optimizer
from typing_extensions import override

from tools.gpu.loops import Loop, quietly
from tools.gpu.setting import Setting
from tools.gpu.tasks import Task

__all__ = ["WARMUP", "CountsCalls", "CountsWarnings", "Window", "run_turn", "synchronize"]

WARMUP = 5
"""Updates before the window: the choice of algorithms and the first allocations."""


def synchronize() -> None:
    """Wait until the device has done all that was asked of it."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Window:
    """The time and the memory of some updates, from the end of one to the end of another.

    Attributes:
        updates: How many updates lie between both.
        seconds: The time that they took; None before the end.
        peak_bytes: The most memory that tensors took on the device meanwhile, beyond what was taken before the turn.
    """

    def __init__(self, updates: int, looks: Iterable[AbstractContextManager[object]] = ()) -> None:
        self.updates = updates
        self.seconds: float | None = None
        self.peak_bytes = 0
        self._looks = looks
        self._looking = ExitStack()
        self._count = 0
        self._started = 0.0
        self._bytes_before = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0

    def watch(self, optimizer: Optimizer) -> None:
        """Count the steps of an optimizer."""
        optimizer.register_step_post_hook(self._on_step)

    def close(self) -> None:
        """End what a failure has left open."""
        self._looking.close()

    def _on_step(self, *_: Any) -> None:
        self._count += 1
        if self._count == WARMUP:
            self._begin()
        elif self._count == WARMUP + self.updates:
            self._end()

    def _begin(self) -> None:
        synchronize()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        for look in self._looks:
            self._looking.enter_context(look)
        self._started = time.perf_counter()

    def _end(self) -> None:
        self._looking.close()
        synchronize()
        self.seconds = time.perf_counter() - self._started
        if torch.cuda.is_available():
            self.peak_bytes = torch.cuda.max_memory_allocated() - self._bytes_before


class CountsCalls(AbstractContextManager[None]):
    """Counts the calls of CUDA that wait or copy, by name, as torch's profiler sees them."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self._profile = torch.profiler.profile()

    @override
    def __enter__(self) -> None:
        self._profile.start()

    @override
    def __exit__(self, *_: object) -> None:
        self._profile.stop()
        for event in self._profile.key_averages():
            self.counts[str(event.key)] += int(event.count)


class CountsWarnings(AbstractContextManager[None]):
    """Counts what torch's own check of synchronizing operations warns of."""

    def __init__(self) -> None:
        self.count = 0
        self._catching = ExitStack()

    @override
    def __enter__(self) -> None:
        self._caught = self._catching.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")

    @override
    def __exit__(self, *_: object) -> None:
        torch.cuda.set_sync_debug_mode("default")
        self.count = sum("synchronizing" in str(warning.message) for warning in self._caught)
        self._catching.close()


def run_turn(task: Task, loop: Loop, window: Window, setting: Setting, *, spare: int = 2) -> None:
    """Train a new model for as many updates as the window needs.

    Args:
        task: The model and its data.
        loop: The way to train.
        window: What looks at the training.
        setting: The device.
        spare: Batches beyond the window, so that no loop is already without a batch to prepare when it ends; more
            where the scaler of fp16 may skip updates.

    Raises:
        RuntimeError: The loop made fewer updates.
    """
    torch.manual_seed(0)
    with setting.device:
        model = task.make_model()
    optimizer = AdamW(model.parameters(), lr=1e-4)
    window.watch(optimizer)
    data = task.make_data((WARMUP + window.updates + spare) * task.batch_size)
    try:
        with quietly():
            loop(model, task.loss_func, optimizer, data, task.batch_size)
    finally:
        window.close()
        del model, optimizer
        gc.collect()
    if window.seconds is None:
        message = f"the loop ended before its update {WARMUP + window.updates}"
        raise RuntimeError(message)
