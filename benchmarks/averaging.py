"""What an update of the average costs: microseconds of `ModelEma`, of the least that is possible, and of a plain loop.

Runs as ``python -m benchmarks.averaging NETWORK``. The update takes turns with one `lerp_` over two flat tensors
that hold as many numbers as the network has parameters and floating-point buffers, then with torch's fused `lerp_` over
the tensors as they are, which `ModelEma` calls, and then with the loop over the state dict that many scripts have. Each
of them finds the caches filled by the other one.

A flat `lerp_` is the floor: whatever averages has to read two numbers and write one for each parameter. Where a network
is so small that it stays in the caches, the floor is no longer memory but the overhead of single operations.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from benchmarks.models import ResNet
from benchmarks.processes import in_turn, publish
from benchmarks.tasks import TASKS
from pa_callbacks_extra import ModelEma

DECAY = 0.99
SECONDS = 2.0  # for each comparison
MAX_ROUNDS = 1000


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "digits net": lambda: TASKS["digits"]().model,
    "ResNet-18": lambda: ResNet((2, 2, 2, 2), bottleneck=False),
    "ResNet-50": lambda: ResNet((3, 4, 6, 3), bottleneck=True),
}


def flat_lerp(model: nn.Module) -> Callable[[], object]:
    """The least that averaging can cost."""
    numbers = sum(tensor.numel() for tensor in model.state_dict().values() if tensor.is_floating_point())
    average, values = torch.rand(numbers), torch.rand(numbers)
    return lambda: average.lerp_(values, 1 - DECAY)


def fused_lerp(model: nn.Module) -> Callable[[], object]:
    """The call of torch that averages all tensors of a network, and nothing around it."""
    values = [tensor for tensor in model.state_dict().values() if tensor.is_floating_point()]
    averages = [value.clone() for value in values]
    return lambda: torch._foreach_lerp_(averages, values, 1 - DECAY)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]  # no public one is fused


def loop_over_state_dict(model: nn.Module) -> Callable[[], object]:
    """Averaging as many scripts do it."""
    averages = copy.deepcopy(model.state_dict())

    @torch.no_grad()
    def update() -> None:
        for name, value in model.state_dict().items():
            averages[name].copy_(DECAY * averages[name] + (1 - DECAY) * value)

    return update


def microseconds(variant: Callable[[], object]) -> float:
    """Time one call, by the clock of this thread, which others that compute do not advance."""
    start = time.thread_time()
    variant()
    return (time.thread_time() - start) * 1e6


def main(network: str) -> None:
    """Publish the medians of the calls in turn."""
    torch.set_num_threads(1)
    model = NETWORKS[network]()
    ema = ModelEma(model, DECAY)
    others = {"flat_lerp": flat_lerp, "fused_lerp": fused_lerp, "state_dict_loop": loop_over_state_dict}
    figures: dict[str, float] = {}
    for name, make in others.items():
        update, other = partial(microseconds, lambda: ema.update(model)), partial(microseconds, make(model))
        rounds = max(10, min(MAX_ROUNDS, int(SECONDS * 1e6 / (update() + other()))))
        found = in_turn({"model_ema": update, name: other}, rounds, warmup=rounds // 10)
        figures[name] = found[name]
        figures.setdefault("model_ema", found["model_ema"])
    publish(**figures)


if __name__ == "__main__":
    main(sys.argv[1])
