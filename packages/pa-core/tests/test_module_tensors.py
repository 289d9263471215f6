"""The parameters and buffers of a module as torch lists them, and the parameters of an optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import nn

from pa_core.model_tensors import buffers_of_module, parameters_of, parameters_of_module


def _tied() -> nn.Module:
    """An embedding whose weight is also that of the last layer, and a layer that occurs twice."""
    repeated = nn.Linear(4, 4)
    model = nn.Sequential(nn.Embedding(6, 4), repeated, nn.BatchNorm1d(4), repeated, nn.Linear(4, 6, bias=False))
    model[4].weight = model[0].weight
    return model


def _within_itself() -> nn.Module:
    model = nn.Sequential(nn.BatchNorm1d(3))
    model[0].add_module("parent", model)
    return model


def _with_gaps() -> nn.Module:
    """Names that stand for nothing yet."""
    model = nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.Linear(3, 2, bias=False))
    model.register_module("absent", None)
    return model


def _compiled() -> nn.Module:
    return cast("nn.Module", torch.compile(nn.Linear(2, 1), backend="eager"))


def _scripted() -> nn.Module:
    return torch.jit.script(nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)))


@pytest.mark.parametrize(
    "make", [_tied, _within_itself, _with_gaps, _compiled, lambda: nn.TransformerEncoderLayer(4, 2)]
)
def test_they_are_those_of_torch(make: Callable[[], nn.Module]) -> None:
    """Each once, and in the same order."""
    model = make()
    assert list(map(id, parameters_of_module(model))) == list(map(id, model.parameters()))
    assert list(map(id, buffers_of_module(model))) == list(map(id, model.buffers()))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_a_scripted_module_has_them_too() -> None:
    """Torch keeps those of its scripts elsewhere, and makes new objects for them."""
    model = _scripted()
    assert [one.data_ptr() for one in parameters_of_module(model)] == [one.data_ptr() for one in model.parameters()]
    assert [one.data_ptr() for one in buffers_of_module(model)] == [one.data_ptr() for one in model.buffers()]


def test_parameters_of_an_optimizer_come_in_the_order_of_its_groups() -> None:
    """Also those of a group that was added later, as for a layer that is unfrozen in mid-run."""
    layers = [nn.Linear(1, 1, bias=False) for _ in range(2)]
    optimizer = torch.optim.SGD(layers[1].parameters(), lr=0.1)
    optimizer.add_param_group({"params": layers[0].parameters()})
    assert [id(one) for one in parameters_of(optimizer)] == [id(layers[1].weight), id(layers[0].weight)]
