"""Reducers that a trial wraps: when they are reset, what they get, what they may return."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from pa_trial import metric_reducers
from pa_trial.errors import InvalidHP
from pa_trial.metric_reducers import MetricReducers
from pa_trial.reducer import MetricReducer
from tests.support.trials import raising


class Total(MetricReducer):
    """Adds up."""

    def __init__(self, result: Any = None) -> None:
        self.total = 0.0
        self.result = result

    @override
    def reset(self) -> None:
        self.total = 0.0

    @override
    def per_slot_reduce(self) -> Any:
        return self.total

    @override
    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        return sum(per_slot_metrics) if self.result is None else self.result


def results(reducers: MetricReducers, *of_others: list[Any], training: bool = True) -> dict[str, Any]:
    """The metrics of a workload, for this process and others that contributed these values."""
    with pytest.MonkeyPatch.context() as patch:

        def gather(own: object) -> list[object]:
            return [own, *((None, held) for held in of_others)]

        patch.setattr(metric_reducers, "gather_objects", gather)
        return reducers.exchange(None, training=training)[1]


def test_a_function_gets_all_values() -> None:
    """The object that is returned collects values, each its own; after a reset they are gone."""
    reducers = MetricReducers()
    mean, other = reducers.wrap(np.mean, name="mean"), reducers.wrap(np.mean, name="other")
    mean.update(100.0)
    reducers.reset()
    mean.update(1.0)
    mean.update(2.0)
    other.update(3.0)
    assert results(reducers) == {"mean": 1.5, "other": 3.0}


@given(st.lists(st.integers(), max_size=20), st.integers(1, 5))
def test_values_come_in_the_order_of_one_process(values: list[int], ranks: int) -> None:
    """With one update a batch, a function gets the values as if one process had seen all batches."""
    shares = [values[rank::ranks] for rank in range(ranks)]
    reducers = MetricReducers()
    collected = reducers.wrap(lambda items: items, name="items")
    for value in shares[0]:
        collected.update(value)
    assert results(reducers, *([share] for share in shares[1:])) == {"items": values}


def test_values_stay_as_they_were_when_they_were_added() -> None:
    """A tensor that changes later, or has a graph, is neither seen changed nor kept alive with its graph."""
    seen: list[Any] = []
    reducers = MetricReducers()
    collected = reducers.wrap(seen.extend, name="nothing")
    value = torch.ones(2, requires_grad=True)
    changing = torch.zeros(2)
    collected.update((value * 2, {"changing": changing}))
    changing += 1
    assert results(reducers) == {"nothing": None}
    doubled, held = seen[0]
    assert doubled.tolist() == [2.0, 2.0]
    assert not doubled.requires_grad
    assert held["changing"].tolist() == [0.0, 0.0]


class Histogram(Total):
    """Counts words, in a container that is more than a dictionary."""

    @override
    def per_slot_reduce(self) -> Counter[str]:
        return Counter("abca")

    @override
    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> dict[str, Any]:
        (words,) = per_slot_metrics
        return {"twice": (words + words)["a"], "missing": words["z"], "row": torch.ones(2)}


def test_containers_keep_their_class() -> None:
    """A cross-slot reduction gets a Counter where the per-slot one returned a Counter."""
    reducers = MetricReducers()
    reducers.wrap(Histogram())
    metrics = results(reducers)
    assert (metrics["twice"], metrics["missing"], metrics["row"].tolist()) == (4, 0, [1.0, 1.0])


def test_a_reducer_without_a_name_returns_several_metrics() -> None:
    """Their names are those of its dictionary; tensors become arrays, or numbers."""
    reducers = MetricReducers()
    reducers.wrap(lambda items: {"number": len(items), "matrix": torch.eye(2), "loss": torch.tensor(0.5)})
    metrics = results(reducers)
    assert metrics["number"] == 0
    assert isinstance(metrics["matrix"], np.ndarray)
    assert isinstance(metrics["loss"], float)


@pytest.mark.parametrize(
    ("name", "result", "message"),
    [
        (None, 1.0, "Total was wrapped with name=None but it did not return a dict"),
        ("mine", {"a": 1.0}, "Total (name='mine') was wrapped with name set but it returned a dict anyway"),
    ],
)
def test_a_name_and_a_dictionary_exclude_each_other(name: str | None, result: Any, message: str) -> None:
    """The error is an AssertionError that names the reducer."""
    reducers = MetricReducers()
    reducers.wrap(Total(result), name)
    with pytest.raises(AssertionError, match=re.escape(message)):
        results(reducers)


@pytest.mark.parametrize("method", ["reset", "per_slot_reduce", "cross_slot_reduce"])
def test_the_error_of_a_reducer_names_it(method: str) -> None:
    """Whatever a method raises comes out as a ValueError with the original as its cause; only InvalidHP as itself."""
    reducers = MetricReducers()
    failing = reducers.wrap(Total(), "iou")
    for error in (ZeroDivisionError("no samples"), InvalidHP("diverged")):
        setattr(failing, method, raising(error))
        with pytest.raises((ValueError, InvalidHP)) as raised:  # noqa: PT012 - in either of the two
            reducers.reset()
            results(reducers)
        if isinstance(error, InvalidHP):
            assert raised.value is error
        else:
            assert f"Total (name='iou') failed in {method}: no samples" in str(raised.value)
            assert raised.value.__cause__ is error


@pytest.mark.parametrize(("name", "told"), [(None, "max failed"), ("largest", r"max \(name='largest'\) failed")])
def test_the_error_of_a_function_names_it(name: str | None, told: str) -> None:
    """By its own name, and that of the metric where there is one."""
    reducers = MetricReducers()
    reducers.wrap(max, name)
    with pytest.raises(ValueError, match=f"The metric reducer {told}"):
        results(reducers)


@pytest.mark.parametrize("reducer", [None, 3, "mean", Total, MetricReducer])
def test_what_cannot_reduce_is_refused(reducer: Any) -> None:
    """Neither a MetricReducer nor a function: an AssertionError; a class lacks its parentheses."""
    with pytest.raises(AssertionError, match="wrap_reducer was given"):
        MetricReducers().wrap(reducer)


def test_a_reducer_is_wrapped_once() -> None:
    """Two metrics would overwrite each other's values."""
    reducers, total = MetricReducers(), Total()
    reducers.wrap(total, "a")
    with pytest.raises(AssertionError, match="wrapped twice"):
        reducers.wrap(total, "b")
    wrapped = reducers.wrap(sum, "sum")
    with pytest.raises(AssertionError, match="wrapped twice"):
        reducers.wrap(wrapped, "c")
    name: Any = 3
    with pytest.raises(AssertionError, match="name=3"):
        reducers.wrap(Total(), name)
