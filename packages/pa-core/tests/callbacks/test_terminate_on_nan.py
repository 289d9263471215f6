"""Ending a run whose loss is no longer a number."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import BatchOutput, NonFiniteLossError, TerminateOnNaNCallback
from pa_core._device_reads import ScalarTransfer
from pa_core.testing import RecordingCallback, make_regression
from tests.support.callbacks import CallAt
from tests.support.models import weights_of
from tests.support.trainers import linear_trainer


def with_a_broken_sample(value: float, position: int = 20) -> TensorDataset:
    """Forty samples, one of which has a target that makes the loss of its batch not finite."""
    inputs, targets = make_regression(40).tensors
    targets[position] = value
    return TensorDataset(inputs, targets)


UNSHUFFLED = {"shuffle": False, "batch_size": 8}


@pytest.mark.parametrize(("value", "accumulation"), [(math.nan, 1), (math.inf, 1), (math.nan, 2), (math.nan, 3)])
def test_a_training_loss_that_is_not_finite_ends_the_run(value: float, accumulation: int) -> None:
    """The error says where it happened, nothing of its update is made, and the last events have fired."""
    recorder, weights = RecordingCallback(), list[Tensor]()
    note = CallAt("on_optimizer_step_end", lambda one: weights.append(weights_of(one.get_model())))
    trainer = linear_trainer(TerminateOnNaNCallback(), recorder, note)
    weights.append(weights_of(trainer.model))
    data = with_a_broken_sample(value)
    with pytest.raises(NonFiniteLossError, match=rf"training loss.*\n.*loss={value} at batch 3 of epoch 1"):
        trainer.train(data, 2, gradient_accumulation_steps=accumulation, train_dataloader_kwargs=UNSHUFFLED)
    assert trainer.num_updates_completed == 2 // accumulation
    assert torch.equal(weights_of(trainer.model), weights[-1])
    assert recorder.events.count("on_train_step_start") == 3
    assert recorder.events[-2:] == ["on_stop_training_error", "on_training_run_end"]


def test_without_the_callback_the_run_goes_on() -> None:
    """Only the callback stops; a trainer without it trains to the end."""
    trainer = linear_trainer()
    trainer.train(with_a_broken_sample(math.nan), num_epochs=2)
    assert trainer.num_epochs_completed == 2


class LossElsewhere(Tensor):
    """A loss that behaves as one on an accelerator does: it is not on the CPU, and reading it is noticed."""

    is_cpu = False
    reads = 0

    @override
    def item(self) -> float:
        LossElsewhere.reads += 1
        return self.as_subclass(Tensor).item()


def output_with_loss(value: float) -> BatchOutput:
    """What a step on something like an accelerator returned."""
    loss = torch.tensor(value).as_subclass(LossElsewhere)
    return {"loss": loss, "model_outputs": None, "batch_size": 1}


def loss_elsewhere(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean squared error, on something like an accelerator."""
    return nn.functional.mse_loss(outputs, targets).as_subclass(LossElsewhere)


def test_on_an_accelerator_a_loss_is_seen_before_its_epoch_is_reported() -> None:
    """The first loss that was not finite is named, no metric reaches a logger, and the run ends once."""
    recorder = RecordingCallback()
    trainer = linear_trainer(TerminateOnNaNCallback, recorder, loss_func=loss_elsewhere)
    with pytest.raises(NonFiniteLossError, match="at batch 3 of epoch 1"):
        trainer.train(with_a_broken_sample(math.nan), num_epochs=2, train_dataloader_kwargs=UNSHUFFLED)
    assert "on_train_epoch_end" not in recorder.events
    assert recorder.events.count("on_stop_training_error") == 1
    assert recorder.events[-1] == "on_training_run_end"


def test_what_an_earlier_run_left_behind_does_not_end_the_next_one() -> None:
    """A loss that was still under way when an exception ended a run is forgotten."""
    callback = TerminateOnNaNCallback()
    trainer = linear_trainer(callback, loss_func=loss_elsewhere)
    callback.on_train_step_end(trainer, None, output_with_loss(math.nan), step=1)
    trainer.train(make_regression(8), num_epochs=1)
    assert trainer.num_epochs_completed == 1


def test_what_is_sent_is_the_value_of_that_moment() -> None:
    """A tensor that is changed in place afterwards arrives as it was."""
    transfer = ScalarTransfer[None]()
    value = torch.tensor(1.0).as_subclass(LossElsewhere)
    transfer.send(value, None)
    value.add_(1)
    assert list(transfer.wait_for_all()) == [(None, 1.0)]


def test_the_number_of_scalars_under_way_is_bounded() -> None:
    """A device that never reports back is waited for before the memory grows without limit."""
    transfer = ScalarTransfer[int]()
    arrived = 0
    for step in range(1000):
        transfer.send(torch.tensor(1.0).as_subclass(LossElsewhere), step)
        arrived += len(list(transfer.arrived()))
    assert arrived > 800
