"""The table of a model: each parameter once, whatever it is and wherever it lies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pa_core import ConfigurationError, Trainer, describe_model, unwrap_model
from tests.small_runs import linear


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


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
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
