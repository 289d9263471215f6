"""Parameters and buffers of a module as torch lists them, parameters of an optimizer, and models inside of wrappers."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import nn

from pa_core import unwrap_model
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


def _compiled(model: nn.Module) -> nn.Module:
    """A compiled model; nothing is compiled before it is called."""
    return cast("nn.Module", torch.compile(model, backend="eager"))


def _scripted() -> nn.Module:
    return torch.jit.script(nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)))


@pytest.mark.parametrize(
    "make",
    [_tied, _within_itself, _with_gaps, lambda: _compiled(nn.Linear(2, 1)), lambda: nn.TransformerEncoderLayer(4, 2)],
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


@pytest.mark.parametrize("keep_torch_compile", [True, False])
def test_a_model_without_wrappers_is_returned_itself(keep_torch_compile: bool) -> None:
    """Scripts need not know whether there is a wrapper, even around a model without a layer."""
    model = nn.Sequential()
    assert unwrap_model(model, keep_torch_compile=keep_torch_compile) is model


def test_wrappers_for_several_devices_come_off() -> None:
    """However many there are."""
    model = nn.Linear(2, 1)
    assert unwrap_model(nn.DataParallel(nn.DataParallel(model))) is model


def test_a_compiled_model_stays_compiled_unless_asked_otherwise() -> None:
    """What is saved has plain names; what is called is fast."""
    model = nn.Linear(2, 1)
    compiled = _compiled(model)
    assert unwrap_model(compiled) is compiled
    assert unwrap_model(nn.DataParallel(compiled)) is compiled
    assert unwrap_model(compiled, keep_torch_compile=False) is model


def test_what_was_compiled_around_a_wrapper_is_not_kept() -> None:
    """The wrapper is a part of what was compiled, so one cannot be had without the other."""
    model = nn.Linear(2, 1)
    assert unwrap_model(_compiled(nn.DataParallel(model))) is model
