"""State is found wherever a script keeps it, and nothing of the script runs for it."""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset
from typing_extensions import override

from pa_data.state_search import Snapshot, find_state

COUNTS = {"calls": 0}


class Stage(Enum):
    """Parts of a curriculum."""

    EASY = 1
    HARD = 2


@dataclass
class Nested:
    """An object of the script's own."""

    total: float = 0.0
    names: list[str] = field(default_factory=list)


@dataclass(slots=True)
class WithSlots:
    """One whose attributes are in slots."""

    step: int = 0


class Script:
    """What keeps state of each kind."""

    shared = 0

    def __init__(self) -> None:
        self.step = 0
        self.stage = "easy"
        self.level = Stage.EASY
        self.losses = deque([0.5], maxlen=4)
        self.by_name: dict[str, Any] = {"a": [0], "deep": Nested()}
        self.counts: Counter[str] = Counter()
        self.pairs = defaultdict(list, {"x": [1]})
        self.nested = Nested()
        self.slots = WithSlots()
        self.numbers = itertools.count()
        self.array = np.zeros(3)
        self.tensor = torch.zeros(3)
        self.of_torch = torch.Generator().manual_seed(0)
        self.of_numpy = np.random.default_rng(0)
        self.older = np.random.RandomState(0)
        self.of_python = random.Random(0)
        self.layer = nn.Linear(2, 1)
        self.dataset: Dataset[Any] = Subset(cast("Dataset[Nested]", [Nested()]), [0])  # any sequence will do
        self.counted = self._count()
        self.partial = functools.partial(max, Nested())

    def _count(self) -> Callable[[], None]:
        calls = 0

        def count() -> None:
            nonlocal calls
            calls += 1

        return count

    def note(self) -> None:
        """Change what the module keeps."""
        COUNTS["calls"] += 1

    @property
    def anything(self) -> int:
        """Nobody may ask for it."""
        raise AssertionError


def change_data(script: Script) -> None:
    """As averages of weights are often kept: without a new version."""
    with torch.no_grad():
        script.layer.weight.data.mul_(0.5)


CHANGES: dict[str, Callable[[Script], object]] = {
    "script.step": lambda one: setattr(one, "step", 1),
    "script.stage": lambda one: setattr(one, "stage", "hard"),
    "script.level": lambda one: setattr(one, "level", Stage.HARD),
    "script.losses": lambda one: one.losses.append(0.1),
    "script.by_name['a']": lambda one: one.by_name["a"].append(1),
    "script.by_name['deep'].total": lambda one: setattr(one.by_name["deep"], "total", 1.0),
    "script.by_name['new']": lambda one: one.by_name.update(new=1),
    "script.counts": lambda one: one.counts.update("a"),
    "script.pairs": lambda one: one.pairs["x"].append(2),
    "script.nested.total": lambda one: setattr(one.nested, "total", 0.5),
    "script.nested.names": lambda one: one.nested.names.append("a"),
    "script.slots.step": lambda one: setattr(one.slots, "step", 1),
    "script.numbers": lambda one: next(one.numbers),
    "script.array": lambda one: one.array.fill(1.0),
    "script.tensor": lambda one: one.tensor.add_(1.0),
    "script.of_torch": lambda one: torch.rand(1, generator=one.of_torch),
    "script.of_numpy": lambda one: one.of_numpy.random(),
    "script.older": lambda one: one.older.rand(),
    "script.of_python": lambda one: one.of_python.random(),
    "script.layer.weight": change_data,
    "script.layer.in_features": lambda one: setattr(one.layer, "in_features", 3),
    "script.dataset.dataset[0].total": lambda one: setattr(cast("Any", one.dataset).dataset[0], "total", 1.0),
    "script.counted.calls": lambda one: one.counted(),
    "script.partial[0].total": lambda one: setattr(one.partial.args[0], "total", 1.0),
    "script.late": lambda one: setattr(one, "late", 1),
    "Script.shared": lambda _: setattr(Script, "shared", Script.shared + 1),
    f"{__name__}.COUNTS": lambda one: one.note(),
}


@pytest.mark.parametrize("place", CHANGES)
def test_a_change_is_found_under_the_name_that_a_script_would_write(place: str) -> None:
    """Wherever state is kept, its change is seen, and nothing else is."""
    script = Script()
    before = Snapshot({"script": script})
    assert before.changed(Snapshot({"script": script})) == []
    CHANGES[place](script)
    assert before.changed(Snapshot({"script": script})) == [place]


def test_what_goes_is_found_too() -> None:
    """An attribute that is deleted has changed."""
    script = Script()
    before = Snapshot({"script": script})
    del script.step
    assert before.changed(Snapshot({"script": script})) == ["script.step"]


def test_another_way_to_the_same_is_no_change() -> None:
    """What something nearer to the root refers to now has another name, and is as it was."""
    script = Script()
    before = Snapshot({"script": script})
    setattr(script, "current", script.by_name["deep"])  # noqa: B010  # it is declared nowhere
    assert before.changed(Snapshot({"script": script})) == []


def test_owner_and_name_lead_to_the_value() -> None:
    """Whoever copies and restores state gets at it by what holds it, which need not have attributes."""
    found = {one.place: one for one in find_state({"script": Script()})}
    for place in ("script.step", "script.by_name['a']", "script.counted.calls"):
        owner, name, value = found[place][1:]
        assert (owner[name] if isinstance(owner, dict) else getattr(owner, name)) is value


def test_large_data_is_not_walked() -> None:
    """A million samples in a list, a mapping or a tensor take no time: what counts is at the ends, or in samples."""
    data = SimpleNamespace(
        samples=[(index, str(index)) for index in range(1_000_000)],
        table={index: (index,) for index in range(1_000_000)},
        tensor=torch.zeros(1_000, 1_000).t(),
        array=np.zeros((1_000, 1_000)),
    )
    before = Snapshot({"data": data})
    assert before.changed(Snapshot({"data": data})) == []
    data.samples.append((0, "0"))
    data.tensor.mul_(2.0)
    data.array += 1.0
    assert before.changed(Snapshot({"data": data})) == ["data.samples", "data.tensor", "data.array"]


def test_what_processes_share_is_left_out() -> None:
    """The global generators have their place elsewhere."""
    script = SimpleNamespace(generator=torch.default_generator, of_python=random.random, of_numpy=np.random.rand)
    before = Snapshot({"script": script})
    _ = torch.rand(1), random.random(), np.random.rand()
    assert before.changed(Snapshot({"script": script})) == []


class HalfWay(nn.Module):
    """A model with state of each kind that modules have."""

    running: Tensor

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        """Pass through."""
        return inputs

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running", torch.zeros(1))
        self.inner = nn.Sequential(nn.Linear(1, 1))
        self.calls = 0
        seen = [0]
        self.register_forward_hook(lambda _module, _inputs, _output: seen.append(1))


def test_a_module_is_described_as_its_users_know_it() -> None:
    """Parameters, buffers and inner modules have the names of a state dict; whether it trains is no state."""
    model = HalfWay()
    before = Snapshot({"model": model})
    model.eval()
    assert before.changed(Snapshot({"model": model})) == []
    model.running += 1
    model.calls += 1
    with torch.no_grad():
        model.inner.get_parameter("0.bias").zero_()
        model(torch.zeros(1))
    assert before.changed(Snapshot({"model": model})) == [
        "model.running",
        "model.calls",
        "model._forward_hooks[0].seen",
        "model.inner.0.bias",
    ]
