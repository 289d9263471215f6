"""A generator and a discriminator, in a loop of their own."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import TensorDataset

from pa_core import Run

REAL = torch.randn(22, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def gan(seed: int = 0, **options: Any) -> Run[Any, Any]:
    """A generator and a discriminator with running statistics."""
    torch.manual_seed(seed)
    generator = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4)).double()
    discriminator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).double()
    settings: dict[str, Any] = {
        "num_epochs": 2,
        "per_device_batch_size": 4,
        "create_scheduler_fn": {"generator": partial(ExponentialLR, gamma=0.9)},
        **options,
    }
    return Run(
        {"generator": generator, "discriminator": discriminator},
        {"generator": Adam(generator.parameters(), lr=0.01), "discriminator": SGD(discriminator.parameters(), lr=0.1)},
        TensorDataset(REAL, torch.arange(22)),
        **settings,
    )


def noise(numbers: Tensor) -> Tensor:
    """The same for the same samples, wherever they are."""
    return torch.stack([torch.sin(numbers * step + 0.5) for step in (1.0, 2.0, 3.0)], dim=1).double()
