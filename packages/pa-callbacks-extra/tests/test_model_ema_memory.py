"""The memory that an average takes up, and what it shares with its model while it is applied."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import nn

from pa_callbacks_extra import ModelEma
from pa_core.testing import TinyClassifier
from tests.support.pa_callbacks_extra.averaged_models import all_equal, set_all, values


def allocated_by(function: Callable[[], object]) -> int:
    """The bytes of memory that torch takes up for tensors while the function runs, given back or not."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    return sum(max(event.self_cpu_memory_usage, 0) for event in profile.events() or ())


def test_an_update_takes_up_no_memory() -> None:
    """No temporary is made in an update, while averaging a state dict makes some of the size of all weights."""
    model = TinyClassifier(hidden=256, batch_norm=True)
    ema = ModelEma(model, decay=0.5)
    ema.update(model)

    def update_state_dict() -> None:
        with torch.no_grad():
            for average, value in zip(values(ema.module).values(), values(model).values(), strict=True):
                average.copy_(0.5 * average + 0.5 * value)

    assert allocated_by(lambda: ema.update(model)) == 0
    assert allocated_by(update_state_dict) > 4 * sum(parameter.numel() for parameter in model.parameters())


def test_an_average_takes_up_one_copy_of_the_weights() -> None:
    """The gradients that a model has are not copied with its weights."""
    model = nn.Linear(100, 100)
    torch.autograd.backward(model(torch.ones(1, 100)).sum())
    size = 4 * sum(parameter.numel() for parameter in model.parameters())
    made: list[ModelEma] = []

    assert allocated_by(lambda: made.append(ModelEma(model))) == size
    assert all(parameter.grad is None for parameter in made[0].parameters())


def test_an_average_outlives_the_weights_of_its_model() -> None:
    """An average that was updated does not keep the memory of a model that is gone."""
    model = nn.Linear(2, 2)
    ema = ModelEma(model)
    ema.update(model)
    with ema.applied_to(model):
        pass
    weight = weakref.ref(model.weight)

    del model
    gc.collect()

    assert weight() is None
    assert not all_equal(ema.module, 0.0)


class Evaluated(Exception):
    """Raised where an evaluation fails."""


def test_the_averaged_weights_are_in_the_model_for_a_while() -> None:
    """Within the context the model has the average, also under a wrapper; afterwards its own weights, come what may."""
    model = TinyClassifier(batch_norm=True).train()
    ema = ModelEma(model, decay=0.5)
    set_all(model, 1.0)
    ema.update(model)
    own, averages = values(model), values(ema.module)
    compiled = cast("nn.Module", torch.compile(model, backend="eager"))

    def evaluate() -> None:
        with ema.applied_to(compiled):
            inside = values(model)
            assert all(torch.equal(inside[name], average) for name, average in averages.items())
            assert all(parameter.requires_grad for parameter in model.parameters())
            model.double()
            model.layers[1] = nn.Identity()
            raise Evaluated

    with pytest.raises(Evaluated):
        evaluate()

    for expected, module in ((own, model), (averages, ema.module)):
        assert values(module).keys() == expected.keys()
        assert all(torch.equal(value, expected[name]) for name, value in values(module).items())
    assert model.training
    set_all(model, 7.0)
    assert all(torch.equal(value, averages[name]) for name, value in values(ema.module).items())


def test_applying_the_average_copies_nothing() -> None:
    """The model shows the memory of the average, instead of a copy of it."""
    model = nn.Linear(64, 64)
    ema = ModelEma(model)
    ema.update(model)

    def apply() -> None:
        with ema.applied_to(model):
            pass

    assert allocated_by(apply) == 0
