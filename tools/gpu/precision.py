"""How fast the trainer is in a precision, and how much memory it takes."""

from __future__ import annotations

import functools
import statistics

import torch

from tools.gpu.figures import NEEDS_CUDA, attempt, not_measured, publish
from tools.gpu.loops import Loop, Precision, train_with_trainer
from tools.gpu.setting import Setting
from tools.gpu.tasks import TASKS, Task
from tools.gpu.window import Window, run_turn

__all__ = ["measure"]

KINDS: dict[str, tuple[Precision, bool]] = {
    "fp32": ("no", False),
    "fp32 by TF32": ("no", True),
    "bf16": ("bf16", False),
    "fp16": ("fp16", False),
}


def measure(setting: Setting, kind: str) -> None:
    """Train two tasks in one precision: a process has no more."""
    precision, uses_tf32 = KINDS[kind]
    if not setting.on_cuda and (precision == "fp16" or uses_tf32):
        not_measured(f"samples a second in {kind}", NEEDS_CUDA)
        return
    if uses_tf32:
        torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = uses_tf32
    for name in ("gpt2",) if setting.is_small else ("gpt2", "resnet"):
        task = TASKS[name](setting)
        with attempt(f"samples a second, {task.name}, {kind}"):
            measure_task(task, kind, functools.partial(train_with_trainer, precision=precision), setting)


def measure_task(task: Task, kind: str, loop: Loop, setting: Setting) -> None:
    """Take the median of the rounds."""
    spare = 12 if kind == "fp16" else 2
    window = Window(3)
    run_turn(task, loop, window, setting, spare=spare)
    assert window.seconds is not None
    updates = max(3, min(200, round(setting.seconds_of_turn / (window.seconds / window.updates))))
    seconds: list[float] = []
    for _ in range(min(setting.rounds, 3)):
        window = Window(updates)
        run_turn(task, loop, window, setting, spare=spare)
        assert window.seconds is not None
        seconds.append(window.seconds)
    speed = updates * task.batch_size / statistics.median(seconds)
    note = f"peak memory of the device {window.peak_bytes / 2**20:,.0f} MiB" if setting.on_cuda else ""
    publish(f"samples a second, {task.name}, {kind}", speed, "1/s", note=note)
