"""The metrics of a training workload, over one process or several, and reducers that a trial wraps."""

from __future__ import annotations

import gc
import math
import re
import weakref
from collections import Counter
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from pa_trial import metric_reducers
from pa_trial.errors import CheckFailedError, InvalidHP
from pa_trial.metric_reducers import MetricReducers
from pa_trial.reducer import MetricReducer
from pa_trial.training_metrics import WorkloadMetrics
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


FINITE = st.floats(-1e6, 1e6)


def workload(*returned: Any) -> WorkloadMetrics:
    """A workload with the metrics of these batches."""
    metrics = WorkloadMetrics()
    for one in returned:
        metrics.add(one)
    return metrics


def averages(*returned: Any) -> dict[str, Any]:
    """The averages of a workload on one process."""
    metrics = workload(*returned)
    return metrics.reduce([metrics.payload()])[0]


def reduced(of_ranks: Sequence[Sequence[Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What all processes get, of which each had these batches."""
    return WorkloadMetrics().reduce([workload(*batches).payload() for batches in of_ranks])


@given(st.lists(st.lists(FINITE, min_size=3, max_size=3), min_size=1, max_size=20))
def test_an_average_is_the_mean_over_batches_and_elements(batches: list[list[float]]) -> None:
    """Vectors of the same length are averaged over all their elements, whatever they are made of, to a Python float."""
    expected = pytest.approx(float(np.mean(batches)), rel=1e-6, abs=1e-6)
    tensors = averages(*({"a": torch.tensor(batch, dtype=torch.float64)} for batch in batches))
    arrays = averages(*({"a": np.array(batch)} for batch in batches))
    lists = averages(*({"a": batch} for batch in batches))
    for average in (tensors["a"], arrays["a"], lists["a"]):
        assert type(average) is float
        assert average == expected


@given(st.lists(FINITE, min_size=1, max_size=20), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_scalars_of_a_device_are_averaged_exactly(values: list[float], dtype: torch.dtype) -> None:
    """The average is computed in double precision from what the tensors hold, also from bfloat16."""
    tensors = [torch.tensor(value, dtype=dtype) for value in values]
    expected = math.fsum(tensor.item() for tensor in tensors) / len(values)
    assert averages(*({"a": tensor} for tensor in tensors))["a"] == pytest.approx(expected, rel=1e-12, abs=1e-9)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, None, 3.0], 2.0),
        ([torch.tensor(1.0), None, np.float32(3.0)], 2.0),
        ([1, 2], 1.5),
        ([True, False], 0.5),
        (["good", "bad"], None),
        ([1.0, "bad"], None),
        ([{"a": 1}, {"a": 2}], None),
        ([torch.tensor(1.0 + 1j), torch.tensor(1.0)], None),
        ([torch.ones(3), torch.zeros(1)], 0.75),
        ([torch.tensor([1.0]), torch.tensor(3.0)], 2.0),
        ([math.inf, 1.0], math.inf),
    ],
)
def test_what_can_be_averaged(values: list[Any], expected: float | None) -> None:
    """None is skipped; what is not made of numbers has the average None; a shorter batch has fewer elements."""
    assert averages(*({"a": value} for value in values)) == {"a": expected}


@pytest.mark.parametrize("values", [[None, None], [math.nan, 1.0], [math.inf, -math.inf], [torch.zeros(0)]])
def test_an_average_that_is_not_a_number(values: list[Any]) -> None:
    """No value at all, and values without a mean, give NaN and no warning."""
    assert math.isnan(averages(*({"a": value} for value in values))["a"])


class Pair(NamedTuple):
    """A value of the user's own kind."""

    first: Tensor
    second: int


def test_values_in_containers_are_kept_as_they_are() -> None:
    """Tensors in them are on the CPU and have no graph; large tensors are arrays like small ones."""
    large = torch.ones(2000, requires_grad=True)
    metrics = workload({"large": large * 2, "pair": Pair(large * 3, 1), "others": {"row": [large]}})
    _, (batch,) = metrics.reduce([metrics.payload()])
    assert batch["large"].tolist() == [2.0] * 2000
    assert isinstance(batch["pair"], Pair)
    assert not batch["pair"].first.requires_grad
    assert batch["pair"].first[0] == 3.0
    assert not batch["others"]["row"][0].requires_grad


def test_any_mapping_is_metrics() -> None:
    """A train_batch may return a mapping of its own; of names only is compared which there are, not their order."""
    assert averages(MappingProxyType({"a": 1, "b": 2}), {"b": 4, "a": 3}) == {"a": 2.0, "b": 3.0}


def test_later_changes_do_not_reach_what_was_returned() -> None:
    """A trial may return a running total, or a buffer that the next batch fills again."""
    total, large, buffer = torch.zeros(()), torch.zeros(2000), np.zeros(2)
    metrics = WorkloadMetrics()
    for _ in range(3):
        total += 1
        large += 1
        buffer += 1
        metrics.add({"total": total, "nested": [total], "large": large, "buffer": buffer})
    averages, batches = metrics.reduce([metrics.payload()])
    assert averages["total"] == averages["large"] == averages["buffer"] == 2.0
    assert [int(batch["nested"][0]) for batch in batches] == [1, 2, 3]


def test_no_graph_is_kept() -> None:
    """A metric that still has its graph does not keep the activations of its batch in memory."""
    activations = torch.ones(10, requires_grad=True).exp()
    alive = weakref.ref(activations)
    metrics = workload({"loss": activations.square().sum(), "nested": {"row": activations.square()}})
    del activations
    gc.collect()
    assert alive() is None
    assert len(metrics.payload()) == 1


def test_a_workload_without_metrics() -> None:
    """A trial may return no metrics, or be left before its first batch."""
    metrics = workload({}, {})
    assert metrics.reduce([metrics.payload()]) == ({}, [{}, {}])
    assert metrics.reduce([WorkloadMetrics().payload()]) == ({}, [])


@given(
    st.integers(1, 4).flatmap(
        lambda ranks: st.lists(st.lists(FINITE, min_size=ranks, max_size=ranks), min_size=1, max_size=8)
    )
)
def test_metrics_are_means_over_the_processes(table: list[list[float]]) -> None:
    """Each batch has the mean over the processes, and the average is the mean of these."""
    of_ranks = [
        [{"a": torch.tensor(value, dtype=torch.float64), "b": value} for value in rank]
        for rank in zip(*table, strict=True)
    ]
    average, batches = reduced(of_ranks)
    means = [np.mean(row) for row in table]
    for name in ("a", "b"):
        assert [float(batch[name]) for batch in batches] == pytest.approx(means, rel=1e-9, abs=1e-6)
        assert average[name] == pytest.approx(np.mean(means), rel=1e-9, abs=1e-6)


@pytest.mark.parametrize(
    ("of_ranks", "of_batch", "average"),
    [
        ([None, 3.0], 3.0, 3.0),
        (["x", "y"], "x", None),
        ([np.array([1.0, 2.0]), np.array([3.0, 6.0])], [2.0, 4.0], 3.0),
        ([np.array([1.0, 2.0, 3.0]), np.array([4.0])], 3.0, 3.0),
        ([1, 2], 1.5, 1.5),
    ],
)
def test_metrics_of_a_batch_that_differ_in_kind(of_ranks: list[Any], of_batch: Any, average: float | None) -> None:
    """None does not count, what has no mean is the chief's, and a shorter batch counts as much as a full one."""
    averages, (batch,) = reduced([[{"a": value}] for value in of_ranks])
    assert np.array_equal(batch["a"], of_batch)
    assert averages == {"a": average}


def test_names_that_differ_between_processes_are_refused() -> None:
    """Each process raises the same error."""
    with pytest.raises(CheckFailedError, match=r"\['a'\] .* on rank 0, \['b'\] .* on rank 1"):
        reduced([[{"a": 1}], [{"b": 1}]])
    with pytest.raises(CheckFailedError, match="in batch 1"):
        reduced([[{"a": 1}, {"a": 1}], [{"a": 1}, {"b": 1}]])


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # not annotated by torch
    """Notes down which operations of torch are called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.called: list[str] = []

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_a_batch_waits_for_nothing() -> None:
    """Keeping a tensor copies it where it is; nothing reads its value before the workload ends."""
    metrics, loss = WorkloadMetrics(), torch.ones((), requires_grad=True) * 2
    with Operations() as operations:
        metrics.add({"loss": loss, "rate": 0.1})
        metrics.add(loss)
    assert operations.called == ["detach", "clone"] * 2
