"""What the trainer takes in one precision, of which a process has one: time of an update, and memory of the device.

Runs as ``python -m benchmarks.precision fp32|tf32|bf16|fp16``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import Literal

import torch

from benchmarks.measures import medians
from benchmarks.processes import publish
from benchmarks.tasks import TASKS, Task

PRECISIONS: dict[str, Literal["no", "bf16", "fp16"]] = {"fp32": "no", "tf32": "no", "bf16": "bf16", "fp16": "fp16"}
LOOP = "ours_bare"


def main(precision: str) -> None:
    """Publish the figures of both tasks."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    for name in ("transformer", "resnet"):
        make_task = partial(_task, name, PRECISIONS[precision])
        for measure, figures in medians(("update", "device_memory"), make_task, (LOOP,)).items():
            publish(f"{measure}_{name}", **{precision: figures[LOOP]})


def _task(name: str, mixed_precision: Literal["no", "bf16", "fp16"]) -> Task:
    return replace(TASKS[name](), mixed_precision=mixed_precision)


if __name__ == "__main__":
    main(sys.argv[1])
