"""Runs with a gradient scaler, as fp16 on an accelerator has one; here a real one scales gradients on the CPU."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import NonFiniteLossError, SaveTrainingStateCallback, Trainer
from pa_core.testing import RecordingCallback, make_regression
from tests.support.models import weights_of

pytestmark = pytest.mark.runs_on("one_process", "two_ranks")


class Scaled(Trainer[nn.Linear]):
    """A trainer whose accelerator scales losses, as accelerate does for fp16."""

    @override
    def _create_accelerator(self) -> Any:
        accelerator: Any = super()._create_accelerator()
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
        return accelerator


class TokenScaled(Scaled):
    """The same, with a loss that counts items."""

    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        return {**super().calculate_train_batch_loss(batch), "num_items_in_batch": len(batch[0])}


def linear(weight: float = 0.1) -> nn.Linear:
    """A linear model with fixed weights."""
    model = nn.Linear(4, 1)
    nn.init.constant_(model.weight, weight)
    nn.init.zeros_(model.bias)
    return model


def weights_after(trainer_class: type[Trainer[nn.Linear]]) -> Tensor:
    """The weights after some clipped updates of uneven batches."""
    model = linear()
    torch.manual_seed(0)
    trainer = trainer_class(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1, momentum=0.9), callbacks=[])
    trainer.train(
        make_regression(21), 2, per_device_batch_size=2, gradient_accumulation_steps=2, gradient_clip_norm=0.5
    )
    return weights_of(model)


@pytest.mark.parametrize("trainer_class", [Scaled, TokenScaled])
def test_scaling_changes_no_update(trainer_class: type[Scaled]) -> None:
    """Accumulated, clipped and item-weighted updates are those without a scaler: clipping sees unscaled gradients."""
    assert torch.allclose(weights_after(trainer_class), weights_after(Trainer[nn.Linear]), rtol=0, atol=1e-6)


def test_a_skipped_update_counts_for_nothing_but_the_data() -> None:
    """Where gradients overflow, the weights stay, no scheduler steps and no event fires; the samples are used up."""
    inputs, targets = make_regression(12).tensors
    inputs = inputs.clone()
    inputs[:, 0] = torch.tensor([1e30] + [0.0] * 11)  # its gradient overflows, its loss does not
    model, recorder = linear(weight=1e-15), RecordingCallback()
    trainer = Scaled(model, nn.MSELoss(), SGD(model.parameters(), lr=1e-3), callbacks=[recorder])
    trainer.train(
        TensorDataset(inputs, targets),
        1,
        per_device_batch_size=2,
        create_scheduler_fn=partial(StepLR, step_size=1, gamma=0.5),
        train_dataloader_kwargs={"shuffle": False},
    )
    steps = trainer.run_config.num_update_steps_per_epoch
    assert trainer.num_updates_completed == steps - 1
    assert recorder.events.count("on_optimizer_step_end") == steps - 1
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * 0.5 ** (steps - 1))
    assert trainer.run_history.clock.samples == 12
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_gradients_that_overflow_for_ever_end_the_run(shared_tmp_path: Path) -> None:
    """Before the scale is zero, which would make the weights NaN; no state of the end is saved, as with such a loss."""
    model, data = linear(weight=1e-15), TensorDataset(torch.full((160, 4), 1e30), torch.zeros(160, 1))
    recorder, save = RecordingCallback(), SaveTrainingStateCallback(shared_tmp_path)
    trainer = Scaled(model, nn.MSELoss(), SGD(model.parameters(), lr=1e-3), callbacks=[recorder, save])
    before = model.weight.detach().clone()
    with pytest.raises(NonFiniteLossError, match=r"overflow(.|\n)*scale of 5\.96e-08(.|\n)*bf16"):
        trainer.train(data, 4, per_device_batch_size=1)
    assert torch.equal(model.weight, before)
    assert trainer.num_updates_completed == 0
    assert recorder.events[-2:] == ["on_stop_training_error", "on_training_run_end"]
    assert not [path for path in shared_tmp_path.iterdir() if not path.name.startswith(".")]
