"""The memory of an update is known before it is made."""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import Trainer
from pa_core.testing import make_regression
from pa_preflight import Plan, plan
from tests.support.pa_preflight.measured_memory import CASES, memory_of
from tests.support.pa_preflight.scripts import Net

AT_NIGHT = {"the same in bf16, fused AdamW", "LSTM, AdamW"}
"""Another network of a kind that is planned each time, in bf16 or with gates."""


NEEDS_BF16_KERNELS = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="a CPU without AVX-512 unfolds the inputs of convolutions in bf16",
)


def _marks(name: str) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.more_cases] if name in AT_NIGHT else []
    return [*marks, NEEDS_BF16_KERNELS] if name == "the same in bf16" else marks


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in CASES])
def test_the_peak_of_an_update_is_planned(name: str) -> None:
    """Within a tenth of what torch's profiler measures of a run."""
    planned, measured = memory_of(CASES[name])
    assert planned == pytest.approx(measured, rel=0.1)


def _planned(model: nn.Module, optimizer: Optimizer | None = None, **arguments: Any) -> Plan:
    trainer = Trainer(model, nn.MSELoss(), optimizer or SGD(model.parameters(), lr=0.1), callbacks=[])
    return plan(trainer, make_regression(64), num_epochs=1, **arguments)


def test_activations_grow_with_the_batch() -> None:
    """Each sample leaves the outputs of two layers, and the third is the loss's."""
    model = nn.Sequential(nn.Linear(4, 1000), nn.Sigmoid(), nn.Linear(1000, 1))
    small, large = (_planned(model, per_device_batch_size=size).memory for size in (8, 32))
    assert small.activations is not None
    assert large.activations is not None
    assert large.activations - small.activations == pytest.approx(24 * 4 * 1000, rel=0.01)
    assert small.peak is not None
    assert small.peak > small.weights + small.activations


def test_memory_is_planned_for_an_accelerator_that_is_not_there() -> None:
    """Each tensor takes blocks of 512 bytes, and AdamW needs room for a number of each parameter."""
    small = _planned(nn.Linear(4, 1)).memory
    assert small.peak is not None
    assert small.peak_on_accelerator is not None
    assert small.peak_on_accelerator % 512 == 0
    assert small.peak_on_accelerator > small.peak

    layers = nn.Sequential(nn.Linear(4, 100), *(nn.Linear(100, 100) for _ in range(9)), nn.Linear(100, 1))
    large = _planned(layers, AdamW(layers.parameters(), lr=0.1)).memory
    assert large.optimizer is not None
    assert large.peak_on_accelerator == pytest.approx(3 * large.weights + large.optimizer, rel=0.1)


def test_a_step_that_needs_values_is_planned_without_activations() -> None:
    """A note says why, and everything else is planned."""
    model = Net(lambda net, x: net.layer(x) * float(x.numpy().max()), layer=nn.Linear(4, 1))
    planned = _planned(model)
    assert (planned.memory.activations, planned.memory.peak, planned.memory.peak_on_accelerator) == (None, None, None)
    assert len(planned.notes) == 1
    assert "memory of an update could not be predicted" in planned.notes[0]
    assert planned.memory.weights == 20
    assert planned.seconds.update is not None


def test_the_memory_of_a_reproducible_run_is_left_out() -> None:
    """It adds up gradients in a tree, which an update by itself does not show."""
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=[], reproducible="any_processes")
    planned = plan(trainer, make_regression(64), num_epochs=1, per_device_batch_size=4, samples_per_update=16)
    assert planned.memory.peak is None
    assert planned.seconds.update is not None
    assert ["reproducible" in note for note in planned.notes] == [True]


def _differs(net: Any, inputs: Tensor) -> Tensor:
    outputs: Tensor = net.layer(inputs)
    net.num_calls += 1
    return outputs[inputs[:, 0] > -9] if net.num_calls % 2 else outputs * inputs.abs().max().item()


def test_a_step_that_is_another_one_each_time_is_not_traced() -> None:
    """What one of them reads is nothing that another one can be told."""
    model = Net(_differs, layer=nn.Linear(4, 1))
    vars(model)["num_calls"] = 0
    planned = _planned(model)
    assert planned.memory.peak is None
    assert "Two steps with the same batch differ" in planned.notes[0]


@cache
def _positions(length: int) -> Tensor:
    return torch.arange(length).float()


class _KeepsThings(nn.Module):
    """Has a layer of each kind of thing that a forward pass may leave behind."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.last: Tensor | None = None
        self.all: list[Tensor] = []
        self.newest: deque[Tensor] = deque(maxlen=2)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs + _positions(4))
        self.last = outputs.detach()
        self.all.append(self.last)
        self.newest.append(self.last)
        return outputs


class _KeepsLosses(Trainer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.losses: dict[int, Tensor] = {}

    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        output = super().calculate_train_batch_loss(batch)
        self.losses[len(self.losses)] = output["loss"].detach()
        self.log("loss_of_batch", output["loss"].detach())
        return output


def test_no_tensor_without_values_is_left_behind() -> None:
    """Modules and the trainer keep what they kept before, and what cached functions keep can be read."""
    model = _KeepsThings()
    trainer = _KeepsLosses(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
    assert plan(trainer, make_regression(64), num_epochs=1).memory.peak is not None
    assert model.last is None
    assert [*model.all, *model.newest, *trainer.losses.values()] == []
    assert _positions(4).tolist() == [0, 1, 2, 3]
    trainer.train(make_regression(64), num_epochs=1)


def test_a_network_within_a_loss_function_counts() -> None:
    """Nobody knows of its weights, and yet they can be trained on afterwards."""
    critic = nn.Sequential(nn.Linear(1, 5000), nn.ReLU(), nn.Linear(5000, 1))
    model = nn.Linear(4, 1)

    def distance(outputs: Tensor, targets: Tensor) -> Tensor:
        distance: Tensor = (critic(outputs) - critic(targets)).square().mean()
        return distance

    trainer = Trainer(model, distance, SGD(model.parameters(), lr=0.1), callbacks=[])
    memory = plan(trainer, make_regression(64), num_epochs=1).memory
    assert memory.peak is not None
    assert memory.peak > 15_000 * 4
    assert {one.grad for one in critic.parameters()} == {None}
    trainer.train(make_regression(64), num_epochs=1)
    assert {type(one.grad) for one in critic.parameters()} == {Tensor}


class _CountsInEpochs(Trainer):
    @override
    def train_epoch_start(self) -> None:
        super().train_epoch_start()
        self.num_steps = 0

    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        self.num_steps += 1
        return super().calculate_train_batch_loss(batch)


def test_a_step_is_traced_within_an_epoch() -> None:
    """What the start of an epoch makes is there, and the model is in training mode, with masks of dropout."""
    model = nn.Sequential(nn.Linear(4, 1000), nn.Dropout(), nn.Linear(1000, 1)).eval()
    trainer = _CountsInEpochs(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
    memory = plan(trainer, make_regression(64), num_epochs=1).memory
    assert memory.activations is not None
    assert memory.activations > 8 * 1000 * (4 + 1)
    assert not hasattr(trainer, "num_steps")
    assert not model.training


class _TwoModels(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        output = super().calculate_train_batch_loss(batch)
        return {**output, "loss": output["loss"] + self.modules["critic"](output["model_outputs"]).mean()}


def test_everything_that_a_step_uses_counts() -> None:
    """A module that is trained with the model, with an optimizer of its own."""
    model, critic = nn.Linear(4, 1), nn.Sequential(nn.Linear(1, 5000), nn.ReLU(), nn.Linear(5000, 1))
    trainer = _TwoModels(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.add_module("critic", critic, AdamW(critic.parameters(), lr=0.1))
    data = TensorDataset(torch.ones(64, 4), torch.ones(64, 1))
    memory = plan(trainer, data, num_epochs=1, per_device_batch_size=1).memory
    assert memory.peak is not None
    assert memory.optimizer is not None
    assert memory.peak >= memory.weights + memory.gradients + memory.optimizer > 16 * 15_000
