"""Mixed precision: forward passes under autocast, and scalers of a trial's own or of ``use_amp``."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD
from typing_extensions import override

from pa_distributed import gather_objects
from pa_trial._torch import foreach
from pa_trial.collectives import num_processes, rank
from pa_trial.errors import InvalidExperimentException, UnsupportedConfigurationError
from pa_trial.mixed_precision import AutocastHooks, to_full_precision
from tests.support.pa_trial.batches import Batches, OneWeight, gradient_of, mean_over_ranks

on_both = pytest.mark.runs_on("one_process", "two_ranks")


class TellsPrecision(nn.Module):
    """Notes in which precision it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.seen: list[torch.dtype] = []

    @override
    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        output = self.layer(inputs)
        self.seen.append(output.dtype)
        return {"output": output}


def test_a_forward_pass_under_autocast_computes_in_half_precision_and_returns_full_precision() -> None:
    """The module itself is called; what it returns is fp32; nothing is under autocast after it, be it that it fails."""
    model = TellsPrecision()
    handles = AutocastHooks("cpu").register(model)

    output = model(torch.ones(3, 2))["output"]
    with pytest.raises(RuntimeError, match="shapes"):
        model(torch.ones(3, 5))

    assert (model.seen, output.dtype) == ([torch.float16], torch.float32)
    assert not torch.is_autocast_enabled("cpu")
    for clone in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # an average of the weights, say
        clone(torch.ones(3, 2))
        assert clone.seen == [torch.float16] * 2
    for handle in handles:
        handle.remove()
    model(torch.ones(3, 2))
    assert model.seen[1] is torch.float32


class Outer(nn.Module):
    """A model around another one; notes whether it is under autocast after the other's pass."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.seen: list[bool] = []

    @override
    def forward(self, inputs: Tensor) -> None:
        self.inner(inputs)
        self.seen.append(torch.is_autocast_enabled("cpu"))


def test_a_model_within_a_model_computes_under_autocast_once() -> None:
    """Both wrapped: the outer pass goes on under autocast after the inner one."""
    hooks, inner = AutocastHooks("cpu"), TellsPrecision()
    outer = Outer(inner)
    hooks.register(inner)
    hooks.register(outer)
    outer(torch.ones(1, 2))

    assert (inner.seen, outer.seen, torch.is_autocast_enabled("cpu")) == ([torch.float16], [True], False)


class Named(NamedTuple):
    """An output of a model."""

    half: Tensor
    text: str


def test_outputs_of_every_structure_are_brought_to_full_precision() -> None:
    """Dictionaries, lists, tuples with and without names, in one another; what is no fp16 tensor stays the same."""
    half, number = torch.ones(1, dtype=torch.float16), torch.ones(1, dtype=torch.float64)
    output: dict[str, Any] = OrderedDict(a=[half, (half, number)], b=Named(half, "text"))

    full = to_full_precision(output)

    assert type(full) is OrderedDict
    assert [full["a"][0].dtype, full["a"][1][0].dtype, full["b"].half.dtype] == [torch.float32] * 3
    assert full["a"][1][1] is number
    assert full["b"].text == "text"
    assert output["a"][0] is half


def test_automatic_mixed_precision_off_cuda_warns_and_trains_in_full_precision() -> None:
    """The training goes on as without it, also with clipping, and the scale stays one."""
    batches = Batches(aggregation_frequency=2)
    with pytest.warns(UserWarning, match=r"use_amp\(\) has no effect on cpu") as warned:
        batches.parts.use_amp()
    model = batches.parts.wrap_model(TellsPrecision())
    nn.init.zeros_(model.layer.weight)
    optimizer = batches.parts.wrap_optimizer(SGD(model.parameters(), lr=1.0))

    def train_batch(_: int) -> None:
        batches.parts.backward(model(torch.ones(1, 2))["output"].sum())
        batches.parts.step_optimizer(optimizer, lambda parameters: nn.utils.clip_grad_value_(parameters, 0.5))

    batches.train(train_batch, 4)

    assert len(warned) == 1
    assert set(model.seen) == {torch.float32}
    assert model.layer.weight.tolist() == [[-1.0, -1.0]]


@pytest.mark.parametrize("first", ["wrap_scaler", "use_amp"])
@pytest.mark.filterwarnings("ignore:use_amp")
def test_a_second_scaler_and_one_that_comes_after_a_model_are_refused(first: str) -> None:
    """One scaler, before the models: each misuse is told apart."""
    batches = Batches()
    ask = {"wrap_scaler": lambda: batches.parts.wrap_scaler(GradScaler("cpu")), "use_amp": batches.parts.use_amp}
    ask[first]()
    for second in ask.values():
        with pytest.raises(InvalidExperimentException, match="single scaler"):
            second()
    late = Batches()
    late.parts.wrap_model(nn.Linear(1, 1))
    with pytest.raises(InvalidExperimentException, match="before the first model"):
        late.parts.wrap_scaler(GradScaler("cpu"))
    with pytest.raises(InvalidExperimentException, match="before the first model"):
        late.parts.use_amp()


@dataclass
class Scaled(OneWeight):
    """With a scaler that works on a CPU.

    Attributes:
        scaler: That, which the trial wraps.
    """

    scaler: GradScaler = field(init=False)

    @override
    def prepare(self) -> None:
        self.scaler = GradScaler("cpu", init_scale=4.0)
        assert self.parts.wrap_scaler(self.scaler) is self.scaler

    @override
    def loss(self) -> Tensor:
        return self.scaler.scale(super().loss())


@on_both
def test_a_scaler_of_the_trial_scales_unscales_and_steps() -> None:
    """The recipe of torch, with ``scaler=``; clipping by hand and by ``clip_grads`` sees unscaled gradients."""
    batches = Scaled(aggregation_frequency=2)
    seen: list[float] = []

    def train_batch(batch_idx: int) -> None:
        batches.backward()
        if batch_idx % 2:
            batches.scaler.unscale_(batches.optimizer)
        batches.parts.step_optimizer(
            batches.optimizer, lambda parameters: seen.append(gradient_of(parameters)), scaler=batches.scaler
        )
        if batch_idx % 2:
            batches.scaler.update()

    batches.train(train_batch, 4)

    assert seen == [mean_over_ranks()] * 2
    assert batches.value == -2 * mean_over_ranks()
    assert batches.scaler.get_scale() == 4.0


@on_both
def test_a_scaler_that_is_not_passed_is_not_used() -> None:
    """As documented: without ``scaler=``, the step applies the gradients as they are."""
    batches = Scaled()

    batches.train(batches.train_batch, 1)

    assert batches.value == -4.0 * mean_over_ranks()


@pytest.mark.parametrize("unscales", [True, False])
@on_both
def test_all_ranks_skip_a_step_for_which_one_has_infinite_gradients(unscales: bool) -> None:
    """They agree on it, and on the scale after it."""
    batches = Scaled()

    def train_batch(batch_idx: int) -> None:
        overflows = batch_idx == 1 and rank() == num_processes() - 1
        batches.parts.backward(batches.loss() * (float("inf") if overflows else 1.0))
        if unscales:
            batches.scaler.unscale_(batches.optimizer)
        batches.parts.step_optimizer(batches.optimizer, scaler=batches.scaler)
        batches.scaler.update()

    batches.train(train_batch, 3)

    expected = (-2 * mean_over_ranks(), 2.0)
    assert gather_objects((batches.value, batches.scaler.get_scale())) == [expected] * num_processes()


@pytest.mark.runs_on("two_ranks")
def test_gradients_that_are_unscaled_before_they_are_exchanged_are_refused() -> None:
    """A pass that goes round ``context.backward`` leaves them with the rank."""
    batches = Scaled()

    def train_batch(_: int) -> None:
        torch.autograd.backward(batches.loss())
        batches.scaler.unscale_(batches.optimizer)
        batches.parts.step_optimizer(batches.optimizer, scaler=batches.scaler)

    with pytest.raises(InvalidExperimentException, match=r"context\.backward\(scaler\.scale\(loss\)\)"):
        batches.train(train_batch, 1)


class AmpOnCpu(OneWeight):
    """Automatic mixed precision as on CUDA, with a scaler that works on a CPU."""

    @override
    def prepare(self) -> None:
        with pytest.warns(UserWarning, match="use_amp"):
            self.parts.use_amp()
        self.parts.scaler = self.scaler = GradScaler("cpu", init_scale=4.0, growth_interval=2)


@on_both
def test_automatic_mixed_precision_scales_the_loss_and_updates_the_scale_once_a_group() -> None:
    """Gradients are unscaled before they are clipped, for two optimizers; a batch without a step updates nothing."""
    batches = AmpOnCpu(aggregation_frequency=2)
    model, optimizer = batches.wrap_another()
    scales: list[float] = []
    clipped: list[float] = []

    def train_batch(batch_idx: int) -> None:
        scales.append(batches.scaler.get_scale())
        batches.parts.backward(model(torch.full((1, 1), 1.0 + rank())).sum())
        batches.backward()
        if batch_idx < 6:
            batches.parts.step_optimizer(optimizer, lambda parameters: clipped.append(gradient_of(parameters)))
            batches.parts.step_optimizer(batches.optimizer, scaler=batches.scaler)  # the same one, which is used anyway

    batches.train(train_batch, 8)

    assert clipped == [mean_over_ranks()] * 3
    assert batches.value == model.weight.item() == -3 * mean_over_ranks()
    assert scales == [4.0] * 4 + [8.0] * 4  # after two updates; the third waits for a fourth that does not come


def test_a_version_of_torch_without_a_name_is_named() -> None:
    """Whoever needs it is told which versions have it."""
    with pytest.raises(UnsupportedConfigurationError, match=r"without torch\._foreach_nothing_"):
        foreach("nothing_", [torch.zeros(1)])
