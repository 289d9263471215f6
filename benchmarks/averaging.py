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
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

from benchmarks.processes import publish
from pa_callbacks_extra import ModelEma

DECAY = 0.99
SECONDS = 2.0  # for each comparison
MAX_ROUNDS = 1000


def digits_net() -> nn.Module:
    """Three layers over 64 pixels, with 17 thousand parameters."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


def resnet(blocks: list[int], *, bottleneck: bool) -> nn.Module:
    """All layers with parameters of a residual network for ImageNet, one behind the other."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, bias=False), nn.BatchNorm2d(64)]
    channels = 64
    for stage, number in enumerate(blocks):
        width = 64 * 2**stage
        outputs = 4 * width if bottleneck else width
        for block in range(number):
            sizes = [(1, width), (3, width), (1, outputs)] if bottleneck else [(3, width), (3, outputs)]
            inputs = channels
            for kernel, size in sizes:
                layers += [nn.Conv2d(inputs, size, kernel, bias=False), nn.BatchNorm2d(size)]
                inputs = size
            if block == 0 and channels != outputs:
                layers += [nn.Conv2d(channels, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
            channels = outputs
    return nn.Sequential(*layers, nn.Linear(channels, 1000))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "digits net": digits_net,
    "ResNet-18": lambda: resnet([2, 2, 2, 2], bottleneck=False),
    "ResNet-50": lambda: resnet([3, 4, 6, 3], bottleneck=True),
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
    compared = {
        "flat_lerp": (lambda: ema.update(model), flat_lerp(model)),
        "fused_lerp": (lambda: ema.update(model), fused_lerp(model)),
        "state_dict_loop": (lambda: ema.update(model), loop_over_state_dict(model)),
    }
    figures: dict[str, float] = {}
    for name, (update, other) in compared.items():
        of_update, of_other = in_turn(update, other)
        figures[name] = of_other
        figures.setdefault("model_ema", of_update)
    publish(**figures)


def in_turn(update: Callable[[], object], other: Callable[[], object]) -> tuple[float, float]:
    """Return the median times of both."""
    rounds: list[tuple[float, float]] = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end and len(rounds) < MAX_ROUNDS:
        rounds.append((microseconds(update), microseconds(other)))
    updates, others = zip(*rounds[len(rounds) // 10 :], strict=True)  # the first ones warm up
    return statistics.median(updates), statistics.median(others)


if __name__ == "__main__":
    main(sys.argv[1])
