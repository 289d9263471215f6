"""A schedule: the rate of each update of a run, as `plot_schedule` draws it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from pa_schedulers import CosineLrScheduler, plot_schedule

__all__ = ["draw"]


def draw(light: Path, dark: Path) -> None:
    """Draw two groups of parameters, as in finetuning: the second learns faster."""
    body, head = nn.Linear(64, 32), nn.Linear(32, 10)
    groups = [{"params": body.parameters(), "lr": 3e-4}, {"params": head.parameters(), "lr": 1e-3}]
    optimizer = torch.optim.AdamW(groups)
    factory = CosineLrScheduler.create_scheduler_fn(num_warmup_epochs=1, num_cooldown_epochs=1, lr_min=1e-5)
    for path, is_dark in ((light, False), (dark, True)):
        plot_schedule(factory, optimizer, 10, 44, path, dark=is_dark)
