"""Parameters and buffers of a module as torch lists them, the table of a model, and models inside of wrappers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import nn

from pa_core import ConfigurationError, Trainer, describe_model, unwrap_model
from pa_core._tensors import buffers_of_module, parameters_of, parameters_of_module
from tests.small_runs import linear


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


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
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


def rows(table: str) -> dict[str, list[str]]:
    """The cells of each row by its first one, and by all numbers that share a row."""
    return {line.split("  ")[0] or line.strip().split("  ")[0]: line.split() for line in table.splitlines()}


class Tied(nn.Module):
    """An embedding, some blocks that are alike, and a head that has the weight of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 8)
        self.blocks = nn.Sequential(*(nn.Linear(8, 8) for _ in range(12)), nn.Linear(8, 8, bias=False))
        self.head = nn.Linear(8, 100, bias=False)
        self.head.weight = self.embedding.weight


def test_a_shared_parameter_counts_once() -> None:
    """It is in the row of each module that has it."""
    table = rows(describe_model(Tied()))
    assert table["model"][2] == f"{800 + 12 * 72 + 64:,}"
    assert table["embedding"][2:] == ["800", "800", "3.12", "KiB", "float32"]
    assert table["head"][2:] == ["800", "800", "3.12", "KiB", "float32"]


def test_blocks_that_are_alike_share_a_row() -> None:
    """Neighbours of the same class and size do; one that differs has a row of its own."""
    table = describe_model(Tied()).splitlines()
    assert [line.split()[:4] for line in table if line.startswith("    ")] == [
        ["0", "-", "11", "12"],
        ["12", "Linear", "64", "64"],
    ]
    assert len(describe_model(Tied(), depth=1).splitlines()) == 5
    assert len(describe_model(Tied(), depth=0).splitlines()) == 2


def test_frozen_and_half_precision_parameters() -> None:
    """Only what requires gradients is trainable; memory is that of the dtype, buffers included."""
    model = nn.Sequential(nn.Linear(8, 8).bfloat16().requires_grad_(False), nn.BatchNorm1d(8))
    table = rows(describe_model(model))
    assert table["model"][2:] == ["88", "16", "280", "B", "bfloat16,", "float32"]
    assert describe_model(model).splitlines()[2].split() == ["0", "Linear", "72", "0", "144", "B", "bfloat16"]


def test_weights_that_are_not_there_yet() -> None:
    """Those on the meta device count with what they are going to take; lazy ones not at all before the first batch."""
    on_meta = rows(describe_model(nn.Linear(4, 2, device="meta")))["model"]
    assert " ".join(on_meta[2:]) == "10 10 40 B float32 meta"
    lazy = nn.LazyLinear(2)
    assert rows(describe_model(lazy))["model"][2:] == ["0", "0", "0", "B", "lazy"]
    lazy(torch.ones(1, 4))
    assert rows(describe_model(lazy))["model"][2:] == ["10", "10", "40", "B", "float32"]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_wrapped_models_are_described_inside() -> None:
    """A compiled, a scripted and a recursive module have the table of what they are."""
    model = nn.Sequential(nn.Linear(2, 2))
    compiled: Any = torch.compile(model, backend="eager")
    assert describe_model(compiled) == describe_model(model)
    scripted: Any = torch.jit.script(model)
    assert unwrap_model(scripted) is scripted
    assert rows(describe_model(scripted))["model"][2] == "6"


def test_a_trainer_describes_everything_that_it_calls() -> None:
    """Its model, and the modules that are beside it, one of which is not trained."""
    trainer = Trainer(linear(), nn.MSELoss(), None, callbacks=[])
    trainer.add_module("teacher", nn.Linear(1, 1).requires_grad_(False).eval())
    table = rows(trainer.describe_model())
    assert list(table) == ["module", "model", "teacher"]
    assert table["teacher"][2:4] == ["2", "0"]
    assert describe_model({"model": trainer.get_model()}) == describe_model(trainer.get_model())


@pytest.mark.parametrize("depth", [-1, 1.5, True])
def test_a_depth_that_is_none_is_refused(depth: int) -> None:
    """The error says what is expected."""
    with pytest.raises(ConfigurationError, match="at least 0"):
        describe_model(nn.Linear(1, 1), depth)
