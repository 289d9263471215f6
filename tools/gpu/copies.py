"""Whether batches are copied to the device while it computes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable

import torch
from torch import Tensor

from pa_data._fetching import prefetched
from tools.gpu.figures import NEEDS_CUDA, not_measured, publish
from tools.gpu.setting import Setting
from tools.gpu.window import synchronize

__all__ = ["measure"]

BATCHES, ROUNDS = 30, 5
MEBIBYTES = 256


def measure(setting: Setting) -> None:
    """Compare batches that are copied ahead with batches that are copied in turn, and with batches that are there."""
    size = 2 if setting.is_quick else MEBIBYTES
    what = f"a batch of {size} MiB and four matrix products"
    if not setting.on_cuda:
        not_measured(what, NEEDS_CUDA)
        return
    device = setting.device
    pinned = [torch.empty(size * 2**18).pin_memory() for _ in range(2)]
    there = [tensor.to(device) for tensor in pinned]
    weights = torch.rand(8192, 8192, device=device, dtype=torch.bfloat16)
    kinds: dict[str, list[float]] = {"there already": [], "copied in turn": [], "copied ahead": []}
    for _ in range(ROUNDS + 1):
        kinds["there already"].append(seconds_of((there[index % 2] for index in range(BATCHES)), weights))
        in_turn = (pinned[index % 2].to(device, non_blocking=True) for index in range(BATCHES))
        kinds["copied in turn"].append(seconds_of(in_turn, weights))
        ahead = prefetched((pinned[index % 2] for index in range(BATCHES)), device)
        kinds["copied ahead"].append(seconds_of(ahead, weights))
    in_turn_ms = statistics.median(kinds["copied in turn"][1:])
    for kind, seconds in kinds.items():
        median = statistics.median(seconds[1:])
        publish(f"{what}, {kind}", median / BATCHES * 1e3, "ms", to_by_hand=median / in_turn_ms)


def seconds_of(batches: Iterable[Tensor], weights: Tensor) -> float:
    """Use each batch a little, and compute for about as long as a copy takes."""
    synchronize()
    started = time.perf_counter()
    for batch in batches:
        batch[:1].add_(1)
        for _ in range(4):
            weights @ weights  # pyright: ignore[reportUnusedExpression]  # keeps the device busy
    synchronize()
    return time.perf_counter() - started
