"""Models that change while an average follows them: what is followed, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pa_callbacks_extra import ModelEma
from pa_core.testing import TinyClassifier
from tests.support.pa_callbacks_extra.averaged_models import Tied, all_equal, set_all, values


def replace_parameters(model: nn.Linear) -> None:
    """New parameters under the old names, in another order of registration."""
    del model.weight
    model.weight = nn.Parameter(torch.ones(2, 2))
    model.bias = nn.Parameter(torch.ones(2))


def assign_state(model: nn.Linear) -> None:
    """New parameters by loading a state."""
    model.load_state_dict({"weight": torch.ones(2, 2), "bias": torch.ones(2)}, assign=True)


def replace_data(model: nn.Linear) -> None:
    """New memory in the same parameters."""
    model.weight.data, model.bias.data = torch.ones(2, 2), torch.ones(2)


def change_precision(model: nn.Linear) -> None:
    """The same values in double precision."""
    set_all(model.double(), 1.0)


@pytest.mark.parametrize("change", [replace_parameters, assign_state, replace_data, change_precision])
def test_weights_that_are_replaced_are_followed(change: Callable[[nn.Linear], None]) -> None:
    """An average stays with the model when its tensors become others of the same shapes between two updates."""
    model = nn.Linear(2, 2)
    set_all(model, 0.0)
    ema = ModelEma(nn.Sequential(model), decay=0.5)
    ema.update(holder := nn.Sequential(model))
    change(model)

    ema.update(holder)

    assert all_equal(ema.module, 0.5)


def test_layers_and_buffers_that_are_replaced_are_followed() -> None:
    """A new layer in the place of one of the same shape, or a buffer that each forward pass makes anew, is averaged."""
    model = nn.Sequential(nn.BatchNorm1d(2))
    set_all(model, 0.0)
    ema = ModelEma(model, decay=0.5)
    ema.update(model)
    model[0] = nn.BatchNorm1d(2)
    set_all(model, 1.0)
    ema.update(model)
    assert all((value == 0.5).all() for name, value in values(ema.module).items() if "tracked" not in name)

    model[0].register_buffer("running_mean", torch.full((2,), 2.5))
    ema.update(model)
    assert (values(ema.module)["0.running_mean"] == 1.5).all()


@pytest.mark.parametrize("moves_the_module", [True, False])
def test_an_average_that_is_moved_stays_connected(moves_the_module: bool) -> None:
    """When the average is converted to another precision, parameters and buffers of it are still updated."""
    model = TinyClassifier(batch_norm=True)
    set_all(model, 0.0)
    ema = ModelEma(model, decay=0.5)
    ema.update(model)
    (ema.module if moves_the_module else ema).double()
    set_all(model, 1.0)

    ema.update(model)

    averages = {name: value for name, value in values(ema.module).items() if "tracked" not in name}
    assert all((value == 0.5).all() and value.dtype == torch.float64 for value in averages.values())


def linear(out_features: int = 2, **kwargs: Any) -> nn.Linear:
    """A layer with two inputs."""
    return nn.Linear(2, out_features, **kwargs)


def prune(model: nn.Linear) -> None:
    """Leave one output, in the same parameters."""
    model.weight.data, model.bias.data = model.weight.data[:1], model.bias.data[:1]


def add_parameter(model: nn.Linear) -> None:
    """Give the layer one parameter more."""
    model.scale = nn.Parameter(torch.ones(2))


def add_layer(model: nn.Linear) -> None:
    """Give the layer another one inside it."""
    model.adapter = nn.Linear(1, 1)


def drop_bias(model: nn.Linear) -> None:
    """Take a parameter away."""
    model.register_parameter("bias", None)


def move(model: nn.Linear) -> None:
    """Put the layer on another device."""
    model.to("meta")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (prune, r"weight: shape \(1, 2\) on cpu, was shape \(2, 2\) on cpu; bias: shape \(1,\) on cpu, was"),
        (add_parameter, r"scale: shape \(2,\) on cpu, was not there"),
        (add_layer, "adapter.bias: .*, was not there"),
        (move, "weight: shape .* on meta"),
        (drop_bias, r"bias: not there, was shape \(2,\) on cpu"),
    ],
)
def test_a_model_that_changed_is_refused(change: Callable[[nn.Linear], None], named: str) -> None:
    """An update from a model with other tensors than before names what differs, and changes nothing."""
    model = linear()
    ema = ModelEma(model, decay=0.5)
    ema.update(model)
    before = values(ema)
    change(model)

    def apply() -> None:
        with ema.applied_to(model):
            pass

    uses: list[Callable[[], object]] = [lambda: ema.update(model), lambda: ema.reset(model), apply]
    for use in uses:
        with pytest.raises(ValueError, match=named):
            use()

    assert ema.num_updates == 1
    assert all(torch.equal(value, before[name]) for name, value in values(ema).items())


@pytest.mark.parametrize("other", [linear(3), linear(bias=False), TinyClassifier(), nn.Identity()])
def test_another_model_is_refused(other: nn.Module) -> None:
    """An average is not updated from a model that it was not made of."""
    with pytest.raises(ValueError, match="not the one that the average was made from"):
        ModelEma(linear()).update(other)


@pytest.mark.parametrize("tied_first", [True, False])
def test_weights_that_are_tied_or_untied_later_are_refused(tied_first: bool) -> None:
    """One average cannot follow two weights, nor two averages one weight."""
    model = Tied()
    untied = copy.deepcopy(model)
    untied.head.weight = nn.Parameter(model.head.weight.detach().clone())
    first, second = (model, untied) if tied_first else (untied, model)
    ema = ModelEma(first)

    with pytest.raises(ValueError, match=r"one tensor with the names embedding.weight, head.weight"):
        ema.update(second)
