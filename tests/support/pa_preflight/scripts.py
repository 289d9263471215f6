"""What the corpus is made of: scripts up to the line that trains, and what a check must report of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from pa_core import Trainer


class Script(NamedTuple):
    """A trainer, and what its user is about to call ``train`` with."""

    trainer: Trainer
    arguments: dict[str, Any]


class Planted(NamedTuple):
    """A script with one mistake.

    Attributes:
        finding: The name of what must be found.
        make: Makes it.
        do: A part of the advice that is right here; empty where it is the one of all such scripts.
        level: The level of the finding, where it is another one than of other such scripts.
    """

    finding: str
    make: Callable[[], Script]
    do: str = ""
    level: str = ""


def _seeded(make: Callable[[], Script]) -> Callable[[], Script]:
    """Let a script have the same weights in each run, whatever was drawn before."""

    def seeded() -> Script:
        torch.manual_seed(0)
        return make()

    return seeded


@dataclass(frozen=True)
class Planting:
    """Collects scripts with a mistake under the names of the functions that make them."""

    cases: dict[str, Planted] = field(default_factory=dict[str, Planted])

    def __call__(self, finding: str, **others: str) -> Callable[[Callable[[], Script]], Callable[[], Script]]:
        """A decorator of functions that make a script with the mistake that has this name; the rest as `Planted`."""

        def add(make: Callable[[], Script]) -> Callable[[], Script]:
            self.cases[make.__name__] = Planted(finding, _seeded(make), **others)
            return make

        return add


@dataclass(frozen=True)
class Healthy:
    """Collects scripts without a mistake under the names of the functions that make them."""

    cases: dict[str, Callable[[], Script]] = field(default_factory=dict[str, Callable[[], "Script"]])

    def __call__(self, make: Callable[[], Script]) -> Callable[[], Script]:
        """A decorator of functions that make a script."""
        self.cases[make.__name__] = _seeded(make)
        return make


class Apply(nn.Module):
    """A layer without parameters: a function of its input."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(inputs)


def script(
    model: nn.Module,
    loss_func: Callable[..., Tensor] | None,
    train_dataset: Dataset[Any] | DataLoader[Any],
    *,
    optimizer: Optimizer | None = None,
    kind: type[Trainer] = Trainer,
    **arguments: Any,
) -> Script:
    """A script that trains for three epochs with Adam and batches of 32, unless it says otherwise."""
    optimizer = Adam(model.parameters(), lr=0.01) if optimizer is None else optimizer
    if not isinstance(train_dataset, DataLoader):
        arguments = {"per_device_batch_size": 32, **arguments}
    return Script(
        kind(model, loss_func, optimizer, callbacks=[]),
        {"train_dataset": train_dataset, "num_epochs": 3, **arguments},
    )


def perceptron(inputs: int, outputs: int, *, hidden: int = 32) -> nn.Sequential:
    """A network with one hidden layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def conv_net(outputs: int = 4, *, channels: int = 8) -> nn.Sequential:
    """A network for pictures of 8 x 8 pixels, with BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(channels * 4, outputs),
    )
