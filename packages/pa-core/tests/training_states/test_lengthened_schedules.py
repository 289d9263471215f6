"""What the table of differences says of a schedule whose run is made longer, and what the schedule then does."""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.utils.data import TensorDataset

from pa_core import ConfigurationError, Trainer, TrainerCallback, TrainerPlaceholderValues
from tests.support.callbacks import RatesUsed

UPDATES = TrainerPlaceholderValues.NUM_EPOCHS * TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH


def half_a_cosine(step: int, total: int) -> float:
    """From 1 to 0 in so many steps, and 0 after them."""
    return 0.5 * (1 + math.cos(math.pi * min(1, step / total)))


class HalfACosine:
    """The same as an object, whose attributes are part of a state."""

    def __init__(self, total: int) -> None:
        self.total = total

    def __call__(self, step: int) -> float:
        """The part of the base rate after so many steps."""
        return half_a_cosine(step, self.total)


def by_function(optimizer: Optimizer, total: int) -> LambdaLR:
    """A schedule that is a function of the script, as transformers makes them."""
    return LambdaLR(optimizer, partial(half_a_cosine, total=total))


def by_object(optimizer: Optimizer, total: int) -> LambdaLR:
    """A schedule that is an object with attributes."""
    return LambdaLR(optimizer, HalfACosine(total))


def after_a_warmup(optimizer: Optimizer, total: int) -> SequentialLR:
    """A cosine after two updates of warm-up."""
    return SequentialLR(
        optimizer, [LinearLR(optimizer, 0.5, total_iters=2), CosineAnnealingLR(optimizer, total - 2)], [2]
    )


def warmup_by_function(optimizer: Optimizer, total: int) -> SequentialLR:
    """A function of the script after two updates of warm-up."""
    return SequentialLR(optimizer, [LinearLR(optimizer, 0.5, total_iters=2), by_function(optimizer, total)], [2])


def train(lr: float, *callbacks: TrainerCallback, num_epochs: int, **options: Any) -> Trainer:
    """Train one weight with four updates in an epoch."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    trainer: Trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=lr), callbacks=callbacks)
    inputs = torch.linspace(-1, 1, 4)[:, None]
    trainer.train(TensorDataset(inputs, inputs), num_epochs, per_device_batch_size=1, **options)
    return trainer


def said(output: str, setting: str = "length of the schedule") -> list[str]:
    """The row of a setting in the table of differences."""
    row = next(line for line in output.splitlines() if line.startswith(setting))
    return re.split(r"  +", row)[1:]


KEPT = "8; then what its scheduler does after its end"
OF_SCRIPT = "16, as far as the function of the script depends on it"
SCHEDULES: dict[str, tuple[Any, str]] = {
    "cosine after a warm-up": (partial(after_a_warmup, total=UPDATES), KEPT),
    "function": (partial(by_function, total=UPDATES), OF_SCRIPT),
    "function after a warm-up": (partial(warmup_by_function, total=UPDATES), OF_SCRIPT),
    "object": (partial(by_object, total=UPDATES), KEPT),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_table_says_what_the_schedule_does(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run of two epochs that goes on for two more: the column of what is used is what is used."""
    create, expected = SCHEDULES[name]
    train(0.1, num_epochs=2, create_scheduler_fn=create).save_training_state(tmp_path / "state")
    longer, rates = RatesUsed(), RatesUsed()
    train(0.1, longer, num_epochs=4, create_scheduler_fn=create)
    capsys.readouterr()

    train(0.1, rates, num_epochs=4, create_scheduler_fn=create, resume_from=tmp_path / "state")

    assert said(capsys.readouterr().out) == ["8", "16", expected]
    follows_new_length = rates.rates[1:] == pytest.approx(longer.rates[9:])
    assert follows_new_length == (expected == OF_SCRIPT)


def test_a_schedule_of_epochs_has_its_length_in_epochs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Stepped after epochs, two of them have become four; with a metric there is no length ahead."""
    cosine: dict[str, Any] = {
        "create_scheduler_fn": partial(CosineAnnealingLR, T_max=TrainerPlaceholderValues.NUM_EPOCHS),
        "step_scheduler": "epoch",
    }
    plateau: dict[str, Any] = {"create_scheduler_fn": ReduceLROnPlateau, "watch_metric": "train_loss_epoch"}
    for name, options in (("cosine", cosine), ("plateau", plateau)):
        train(0.1, num_epochs=2, **options).save_training_state(tmp_path / name)
        train(0.1, num_epochs=4, **options, resume_from=tmp_path / name)
        assert said(capsys.readouterr().out) == ["2", "4", "2; then what its scheduler does after its end"]


def test_stepping_it_at_another_time_is_a_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A schedule of updates that is resumed as one of epochs is shown as such."""
    create = partial(StepLR, step_size=3)
    train(0.1, num_epochs=1, create_scheduler_fn=create).save_training_state(tmp_path / "state")
    train(0.1, num_epochs=2, create_scheduler_fn=create, step_scheduler="epoch", resume_from=tmp_path / "state")
    row = ["after each update", "after each epoch", "after each epoch"]
    assert said(capsys.readouterr().out, "scheduler is stepped") == row


def test_a_one_cycle_schedule_is_refused_or_begun_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would end with an error; with the permission that the error names, one of the new length begins."""
    create = partial(OneCycleLR, max_lr=0.1, total_steps=UPDATES)
    train(0.1, num_epochs=2, create_scheduler_fn=create).save_training_state(tmp_path / "state")
    with pytest.raises(ConfigurationError, match=r'resume_allow=\("scheduler",\)'):
        train(0.1, num_epochs=4, create_scheduler_fn=create, resume_from=tmp_path / "state")

    allowed = {"resume_from": tmp_path / "state", "resume_allow": ("scheduler",)}
    capsys.readouterr()
    trainer = train(0.1, num_epochs=4, create_scheduler_fn=create, **allowed)
    assert said(capsys.readouterr().out) == ["8", "16", "16"]
    assert trainer.num_updates_completed == 16


def test_another_rate_reaches_nested_schedulers(tmp_path: Path) -> None:
    """The rates of a cosine within a sequence are in proportion to the new rate of the optimizer."""
    create = partial(after_a_warmup, total=UPDATES)
    train(0.1, num_epochs=2, create_scheduler_fn=create).save_training_state(tmp_path / "state")
    rates: list[RatesUsed] = []
    for lr in (0.1, 0.2):
        rates.append(RatesUsed())
        train(lr, rates[-1], num_epochs=4, create_scheduler_fn=create, resume_from=tmp_path / "state")
    assert rates[1].rates == pytest.approx([2 * rate for rate in rates[0].rates], abs=1e-12)
