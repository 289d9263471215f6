"""What a script keeps is stored where it has changed, and put back in a script that is started again."""

from __future__ import annotations

import itertools
import random
import time
from argparse import Namespace
from collections import Counter, UserDict, UserList, defaultdict, deque
from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from pa_data import KeyedDataLoader
from pa_data.script_state import ScriptState

COUNTS = {"calls": 0}


class Stage(Enum):
    """Parts of a curriculum."""

    EASY = 1
    HARD = 2


class Metric(nn.Module):
    """A module with a tensor that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(2)


class Nested:
    """An object of the script's own."""

    def __init__(self) -> None:
        self.best = [1.0]


class Script:
    """What keeps state of each kind; a property of it must not be read."""

    def __init__(self) -> None:
        self.name = "a name"
        self.step = 0
        self.stage = "easy"
        self.level = Stage.EASY
        self.losses = deque([0.5], maxlen=2)
        self.seen = {1}
        self.pairs = defaultdict(int, {"x": 1})
        self.counts: Counter[str] = Counter()
        self.nested = Nested()
        self.simple = SimpleNamespace(step=0, inner=Namespace(best=1.0))
        self.wrapped = UserDict({"logs": UserList([1])})
        self.numbers = itertools.count(3)
        self.array = np.zeros(3)
        self.number = np.float32(1)
        self.of_torch = torch.Generator().manual_seed(0)
        self.of_numpy = np.random.default_rng(0)
        self.of_python = random.Random(0)
        self.metric = Metric()
        self.calls = self._counted()

    def _counted(self) -> Callable[[], int]:
        calls = 0

        def count() -> int:
            nonlocal calls
            calls += 1
            return calls

        return count

    @property
    def dangerous(self) -> object:
        """Code of the script."""
        raise AssertionError


CHANGES: dict[str, Callable[[Script], object]] = {
    "step": lambda script: setattr(script, "step", 3),
    "stage": lambda script: setattr(script, "stage", "hard"),
    "level": lambda script: setattr(script, "level", Stage.HARD),
    "losses": lambda script: script.losses.extend([0.25, 0.125]),
    "seen": lambda script: script.seen.add(2),
    "pairs": lambda script: script.pairs.update(y=2),
    "counts": lambda script: script.counts.update("abb"),
    "nested.best": lambda script: script.nested.best.append(0.5),
    "simple.step": lambda script: setattr(script.simple, "step", 3),
    "simple.inner.best": lambda script: setattr(script.simple.inner, "best", 0.5),
    "wrapped.data['logs'].data": lambda script: script.wrapped["logs"].append(2),
    "numbers": lambda script: next(script.numbers),
    "array": lambda script: script.array.fill(2),
    "number": lambda script: setattr(script, "number", np.float32(2)),
    "of_torch": lambda script: torch.rand(3, generator=script.of_torch),
    "of_numpy": lambda script: script.of_numpy.random(3),
    "of_python": lambda script: script.of_python.random(),
    "metric.total": lambda script: script.metric.total.add_(1),
    "calls.calls": lambda script: script.calls(),
}
"""What changes a value, by its place in the script."""


def content_of(script: Script) -> dict[str, Any]:
    """Return what a script holds, to be compared; generators by what they draw next."""
    held = dict(vars(script), calls=script.calls(), numbers=next(script.numbers), nested=script.nested.best)
    held |= {"metric": script.metric.total.tolist()}
    held |= {"array": script.array.tolist(), "of_torch": torch.rand(2, generator=script.of_torch).tolist()}
    return held | {"of_numpy": script.of_numpy.random(), "of_python": script.of_python.random()}


@pytest.mark.parametrize("place", CHANGES)
def test_what_has_changed_is_stored_and_put_back(place: str) -> None:
    """It is stored alone; another script then holds what the first one held, in the same containers."""
    script = Script()
    state = ScriptState({"script": script})
    CHANGES[place](script)
    stored, lost = state.changes({"script": script})
    assert [*stored] == [f"script.{place}"]
    assert lost == {}
    resumed = Script()
    losses, before = resumed.losses, resumed.nested
    resumed.name = "another name"
    assert ScriptState.restore(stored, {"script": resumed}) == []
    assert content_of(resumed) == content_of(script) | {"name": "another name"}
    assert resumed.losses is losses
    assert resumed.nested is before


def test_what_is_stored_is_what_it_was_then() -> None:
    """What changes after it was stored does not change what is put back."""
    script = Script()
    state = ScriptState({"script": script})
    script.losses.append(0.25)
    stored = state.changes({"script": script}).stored
    script.losses.append(7.0)
    resumed = Script()
    ScriptState.restore(stored, {"script": resumed})
    assert [*resumed.losses] == [0.5, 0.25]


def test_what_means_nothing_in_another_process_is_not_stored() -> None:
    """Such as readings of clocks, and whether a file is open."""
    script = SimpleNamespace(started=0.0, is_open=False, file=None)
    state = ScriptState({"script": script})
    script.started, script.is_open, script.file = time.monotonic(), True, object()
    assert state.changes({"script": script}) == ({}, {})


def test_what_cannot_be_stored_is_named() -> None:
    """Of the first root all that changes, of others what was there; and numbers that a whole process shares."""
    first = SimpleNamespace(teacher=torch.zeros(2))
    other = SimpleNamespace(kept=torch.zeros(2), calls=lambda: COUNTS)
    roots = {"first": first, "other": other}
    state = ScriptState(roots)
    first.teacher, first.average = torch.ones(2), torch.ones(2)
    other.kept, other.made = torch.ones(2), torch.ones(2)
    COUNTS["calls"] += 1
    stored, lost = state.changes(roots)
    assert stored == {}
    assert [*lost] == ["first.teacher", "first.average", "other.kept", f"{__name__}.COUNTS"]
    assert lost["first.average"] is first.average


def test_what_is_saved_in_another_way_is_left_out() -> None:
    """As an object, or by a state dict that names it."""
    schedule = SimpleNamespace(last_epoch=0, bad_epochs=0)
    roots = {"schedule": schedule, "history": (history := SimpleNamespace(losses=[0.5]))}
    state = ScriptState(roots, without=[history])
    schedule.last_epoch, schedule.bad_epochs = 1, 1
    history.losses.append(0.25)
    stored, lost = state.changes(roots, without=[history], saved={"schedule": {"last_epoch": 1}})
    assert [*stored] == ["schedule.bad_epochs"]
    assert lost == {}


def test_what_is_not_accepted_is_named() -> None:
    """Whoever writes the values says which ones it cannot write."""
    script = SimpleNamespace(step=0, wide=1)
    state = ScriptState({"script": script})
    script.step, script.wide = 1, 2**100
    stored, lost = state.changes({"script": script}, accepts=lambda entry: entry["value"] < 2**64)
    assert [*stored] == ["script.step"]
    assert lost == {"script.wide": 2**100}


def test_what_has_no_place_any_more_is_named() -> None:
    """A changed script keeps the rest; what is missing with its whole object is not named."""
    script, other = SimpleNamespace(step=0, rng=random.Random(0)), SimpleNamespace(step=0)
    roots = {"script": script, "other": other}
    state = ScriptState(roots)
    script.step = other.step = 1
    script.rng.random()
    stored = state.changes(roots).stored
    resumed = SimpleNamespace(step=0, rng=np.random.default_rng(0))
    assert ScriptState.restore(stored, {"script": resumed}) == ["script.rng"]
    assert resumed.step == 1


def test_several_processes_may_have_stored_the_same() -> None:
    """Then it can be put back in any number of them; tensors and arrays count by their values."""

    def stored_after(number: int) -> dict[str, Any]:
        script = Script()
        state = ScriptState({"script": script})
        script.metric.total.add_(1)
        script.array.fill(2)
        script.step = number
        return state.changes({"script": script}).stored

    assert [*ScriptState.same_on_all([stored_after(1), stored_after(2)])] == ["script.array", "script.metric.total"]
    assert len(ScriptState.same_on_all([stored_after(1), stored_after(1)])) == 3


class Noise(Dataset[float]):
    """Samples with noise of a generator of their own."""

    def __init__(self) -> None:
        self.random = random.Random(0)

    def __len__(self) -> int:
        return 8

    @override
    def __getitem__(self, index: int) -> float:
        return index + self.random.random()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_fetching_samples_draws_from_is_named(num_workers: int) -> None:
    """It is not stored, as samples are fetched ahead; generators of a plain loader are saved with it."""
    keyed = KeyedDataLoader(Noise(), batch_size=4, num_workers=num_workers)
    state = ScriptState({"script": (script := SimpleNamespace(loader=keyed))}, keyed)
    assert len([*keyed]) == 2
    assert state.drawn() == ["dataset.random"]
    assert state.changes({"script": script}, keyed) == ({}, {})
    plain: DataLoader[float] = DataLoader(Noise(), batch_size=4)
    state = ScriptState({"script": (script := SimpleNamespace(loader=plain))}, plain)
    assert len([*plain]) == 2
    assert state.drawn() == []
    assert state.changes({"script": script}, plain) == ({}, {})
