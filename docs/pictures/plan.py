"""The learning rates of a plan, as `Plan.plot_rates` draws them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from pa_core import Trainer
from pa_core.testing import make_classification
from pa_preflight import plan
from pa_schedulers import CosineLrScheduler

__all__ = ["draw"]


def draw(light: Path, dark: Path) -> None:
    """Plan six epochs, of which the first warms up."""
    model = nn.Linear(4, 3)
    trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters(), lr=0.01), callbacks=[])
    schedule = CosineLrScheduler.create_scheduler_fn(num_warmup_epochs=1)
    planned = plan(trainer, make_classification(320), 6, samples_per_update=32, create_scheduler_fn=schedule)
    planned.plot_rates(light)
    planned.plot_rates(dark, dark=True)
