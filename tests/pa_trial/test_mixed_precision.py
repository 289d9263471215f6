"""Mixed precision: forward passes under autocast, and scalers of a trial's own or of ``use_amp``."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD
from typing_extensions import override

from pa_core.distributed import gather_objects, num_processes, rank
from pa_trial.errors import InvalidExperimentException
from pa_trial.mixed_precision import AutocastHooks, to_full_precision
from tests.pa_trial.batches import Batches

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
    """The module itself is called; what it returns is fp32, and nothing around it is under autocast."""
    model = TellsPrecision()
    handles = AutocastHooks("cpu").register(model)

    output = model(torch.ones(3, 2))["output"]

    assert (model.seen, output.dtype) == ([torch.float16], torch.float32)
    assert not torch.is_autocast_enabled("cpu")
    for handle in handles:
        handle.remove()
    model(torch.ones(3, 2))
    assert model.seen[1] is torch.float32


def test_autocast_ends_with_a_forward_pass_that_fails() -> None:
    """An exception in a forward pass leaves no autocast behind."""
    model = TellsPrecision()
    AutocastHooks("cpu").register(model)

    with pytest.raises(RuntimeError, match="shapes"):
        model(torch.ones(3, 5))

    assert not torch.is_autocast_enabled("cpu")
    model(torch.ones(3, 2))
    assert model.seen == [torch.float16]


def test_a_model_within_a_model_computes_under_autocast_once() -> None:
    """Both wrapped: the outer pass goes on under autocast after the inner one."""
    hooks, inner = AutocastHooks("cpu"), TellsPrecision()
    seen: list[bool] = []

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        @override
        def forward(self, inputs: Tensor) -> Tensor:
            output: Tensor = self.inner(inputs)["output"]
            seen.append(torch.is_autocast_enabled("cpu"))
            return output

    outer = Outer()
    hooks.register(inner)
    hooks.register(outer)
    outer(torch.ones(1, 2))

    assert (inner.seen, seen, torch.is_autocast_enabled("cpu")) == ([torch.float16], [True], False)


def test_copies_and_pickles_of_a_model_compute_in_the_same_precision() -> None:
    """An average of the weights, say, that is validated in the course of training."""
    model = TellsPrecision()
    AutocastHooks("cpu").register(model)

    for clone in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        clone(torch.ones(3, 2))
        assert clone.seen == [torch.float16]


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
    assert batches.parts.scaler is not None
    assert not batches.parts.scaler.is_enabled()


@pytest.mark.parametrize("first", ["wrap_scaler", "use_amp"])
@pytest.mark.filterwarnings("ignore:use_amp")
def test_a_second_scaler_and_one_that_comes_after_a_model_are_refused(first: str) -> None:
    """One scaler, before the models: each misuse is told apart."""
    batches = Batches()
    ask = {"wrap_scaler": lambda: batches.parts.wrap_scaler(GradScaler("cpu")), "use_amp": batches.parts.use_amp}
    ask[first]()
    for second in ask.values():
        with pytest.raises(InvalidExperimentException, match="one scaler"):
            second()
    late = Batches()
    late.parts.wrap_model(nn.Linear(1, 1))
    with pytest.raises(InvalidExperimentException, match="before the first model"):
        late.parts.wrap_scaler(GradScaler("cpu"))
    with pytest.raises(InvalidExperimentException, match="before the first model"):
        late.parts.use_amp()


def scaled_weight(*, init_scale: float = 4.0, **options: Any) -> tuple[Batches, nn.Linear, SGD, GradScaler]:
    """A model with one weight of zero, and a scaler that works on a CPU."""
    batches = Batches(**options)
    scaler = GradScaler("cpu", init_scale=init_scale)
    assert batches.parts.wrap_scaler(scaler) is scaler
    model = batches.parts.wrap_model(nn.Linear(1, 1, bias=False))
    nn.init.zeros_(model.weight)
    return batches, model, batches.parts.wrap_optimizer(SGD(model.parameters(), lr=1.0)), scaler


@on_both
def test_a_scaler_of_the_trial_scales_unscales_and_steps() -> None:
    """The recipe of torch, with ``scaler=``; clipping by hand and by ``clip_grads`` sees unscaled gradients."""
    batches, model, optimizer, scaler = scaled_weight(aggregation_frequency=2)
    seen: list[float] = []

    def train_batch(batch_idx: int) -> None:
        batches.parts.backward(scaler.scale(model(torch.full((1, 1), 1.0 + rank())).sum()))
        if batch_idx % 2:
            scaler.unscale_(optimizer)
        batches.parts.step_optimizer(optimizer, lambda parameters: seen.append(_norm(parameters)), scaler=scaler)
        if batch_idx % 2:
            scaler.update()

    batches.train(train_batch, 4)

    mean = (1 + num_processes()) / 2
    assert seen == [mean] * 2
    assert model.weight.item() == -2 * mean
    assert scaler.get_scale() == 4.0


@on_both
def test_a_scaler_that_is_not_passed_is_not_used() -> None:
    """As documented: without ``scaler=``, the step applies the gradients as they are."""
    batches, model, optimizer, scaler = scaled_weight()

    def train_batch(_: int) -> None:
        batches.parts.backward(scaler.scale(model(torch.ones(1, 1)).sum()))
        batches.parts.step_optimizer(optimizer)

    batches.train(train_batch, 1)

    assert model.weight.item() == -4.0


@pytest.mark.parametrize("unscales", [True, False])
@on_both
def test_all_ranks_skip_a_step_for_which_one_has_infinite_gradients(unscales: bool) -> None:
    """They agree on it, and on the scale after it."""
    batches, model, optimizer, scaler = scaled_weight()

    def train_batch(batch_idx: int) -> None:
        overflows = batch_idx == 1 and rank() == num_processes() - 1
        inputs = torch.full((1, 1), float("inf") if overflows else 1.0)
        batches.parts.backward(scaler.scale(model(inputs).sum()))
        if unscales:
            scaler.unscale_(optimizer)
        batches.parts.step_optimizer(optimizer, scaler=scaler)
        scaler.update()

    # The weight is zero times infinity: start from one.
    nn.init.ones_(model.weight)
    batches.train(train_batch, 3)

    assert gather_objects((model.weight.item(), scaler.get_scale())) == [(-1.0, 2.0)] * num_processes()


@pytest.mark.runs_on("two_ranks")
def test_gradients_that_are_unscaled_before_they_are_exchanged_are_refused() -> None:
    """A pass that goes round ``context.backward`` leaves them with the rank."""
    batches, model, optimizer, scaler = scaled_weight()

    def train_batch(_: int) -> None:
        torch.autograd.backward(scaler.scale(model(torch.ones(1, 1)).sum()))
        scaler.unscale_(optimizer)
        batches.parts.step_optimizer(optimizer, scaler=scaler)

    with pytest.raises(InvalidExperimentException, match=r"context\.backward\(scaler\.scale\(loss\)\)"):
        batches.train(train_batch, 1)


class AmpOnCpu(Batches):
    """Automatic mixed precision as on CUDA, with a scaler that works on a CPU."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        with pytest.warns(UserWarning, match="use_amp"):
            self.parts.use_amp()
        self.parts.scaler = GradScaler("cpu", init_scale=4.0, growth_interval=2)


@on_both
def test_automatic_mixed_precision_scales_the_loss_and_updates_the_scale_once_a_group() -> None:
    """Gradients are unscaled before they are clipped, for two optimizers; a batch without a step updates nothing."""
    batches = AmpOnCpu(aggregation_frequency=2)
    models = [batches.parts.wrap_model(nn.Linear(1, 1, bias=False)) for _ in range(2)]
    optimizers = [batches.parts.wrap_optimizer(SGD(model.parameters(), lr=1.0)) for model in models]
    scales: list[float] = []
    clipped: list[float] = []

    def train_batch(batch_idx: int) -> None:
        assert batches.parts.scaler is not None
        scales.append(batches.parts.scaler.get_scale())
        for model in models:
            batches.parts.backward(model(torch.full((1, 1), 1.0 + rank())).sum())
        if batch_idx < 6:
            batches.parts.step_optimizer(optimizers[0], lambda parameters: clipped.append(_norm(parameters)))
            batches.parts.step_optimizer(optimizers[1])

    batches.train(train_batch, 8)

    mean = (1 + num_processes()) / 2
    assert clipped == [mean] * 3
    assert scales == [4.0] * 4 + [8.0] * 4  # after two updates; the third waits for a fourth that does not come


@on_both
def test_one_scaler_can_be_passed_again_under_automatic_mixed_precision() -> None:
    """``scaler=`` with the trial's own scaler changes nothing."""
    batches = AmpOnCpu()
    model = batches.parts.wrap_model(nn.Linear(1, 1, bias=False))
    nn.init.zeros_(model.weight)
    optimizer = batches.parts.wrap_optimizer(SGD(model.parameters(), lr=1.0))

    def train_batch(_: int) -> None:
        batches.parts.backward(model(torch.ones(1, 1)).sum())
        batches.parts.step_optimizer(optimizer, scaler=batches.parts.scaler)

    batches.train(train_batch, 2)

    assert model.weight.item() == -2.0
    assert batches.parts.scaler is not None
    assert batches.parts.scaler.get_scale() == 8.0


def _norm(parameters: list[nn.Parameter]) -> float:
    return nn.utils.clip_grad_norm_(parameters, float("inf")).item()
