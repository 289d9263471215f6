"""What an update of the average costs, as ratios to what memory allows and to averaging a state dict by hand.

`python tests/benchmarks/ema_cost.py` runs it. For each network, the update of `ModelEma` takes turns with one `lerp_`
over two flat tensors that hold as many numbers as the network has parameters and floating-point buffers, and then with
the loop over the state dict that many scripts have. Each of them finds the caches filled by the other one.

A flat `lerp_` is the floor: whatever averages has to read two numbers and write one for each parameter. Where a network
is so small that it stays in the caches, the floor is no longer memory but the overhead of single operations.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from pa_callbacks_extra import ModelEma

DECAY = 0.99
SECONDS = 2.5  # for each comparison
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


def compare(model: nn.Module, reference: Callable[[], object]) -> tuple[float, float, float]:
    """Return the median times of the update and of the reference, and the median of their ratios."""
    ema = ModelEma(model, DECAY)
    variants = (lambda: ema.update(model), reference)
    rounds: list[tuple[float, ...]] = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end and len(rounds) < MAX_ROUNDS:
        rounds.append(tuple(map(microseconds, variants)))
    own, others = zip(*rounds[len(rounds) // 10 :], strict=True)  # the first ones warm up
    ratios = [mine / other for mine, other in zip(own, others, strict=True)]
    return statistics.median(own), statistics.median(others), statistics.median(ratios)


def main() -> None:
    """Print the medians for each network and each reference."""
    torch.set_num_threads(1)
    print(f"{'network':12}{'compared with':20}{'update us':>12}{'other us':>12}{'ratio':>8}")
    for network, make in NETWORKS.items():
        model = make()
        for name, make_reference in {"flat lerp_": flat_lerp, "loop over state dict": loop_over_state_dict}.items():
            own, other, ratio = compare(model, make_reference(model))
            print(f"{network:12}{name:20}{own:12.1f}{other:12.1f}{ratio:8.3f}")


if __name__ == "__main__":
    main()
