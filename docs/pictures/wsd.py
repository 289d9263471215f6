"""A schedule that warms up, stays, and decays before each of three checkpoints."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import nn

from pa_schedulers import WSDLrScheduler, plot_schedule

__all__ = ["draw"]


def draw(light: Path, dark: Path) -> None:
    """Draw the rate of each update."""
    optimizer = torch.optim.AdamW(nn.Linear(2, 1).parameters(), lr=1e-3)
    factory = partial(WSDLrScheduler, total_steps=2000, num_warmup_steps=50, num_checkpoints=3, lr_min=1e-5)
    for path, is_dark in ((light, False), (dark, True)):
        plot_schedule(factory, optimizer, 10, 200, path, dark=is_dark)
