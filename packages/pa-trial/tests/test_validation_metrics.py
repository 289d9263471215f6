"""The metrics of a validation: how they are reduced over batches and processes, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pa_trial.errors import InvalidExperimentException
from pa_trial.reducer import Reducer
from pa_trial.validation_metrics import ValidationMetrics, metrics_of_full_dataset

FINITE = st.floats(-1e6, 1e6)
FUNCTIONS: dict[Reducer, Any] = {Reducer.AVG: np.mean, Reducer.SUM: np.sum, Reducer.MAX: np.max, Reducer.MIN: np.min}


def validation(returned: Sequence[Any], reducer: Any = Reducer.AVG, **options: Any) -> ValidationMetrics:
    """A validation with the metrics of these batches."""
    metrics = ValidationMetrics(reducer, **options)
    for one in returned:
        metrics.add(one)
    return metrics


def reduced(of_ranks: Sequence[Sequence[Any]], reducer: Any = Reducer.AVG) -> dict[str, Any]:
    """What all processes get, of which each had these batches."""
    metrics = [validation(batches, reducer) for batches in of_ranks]
    return metrics[0].reduce([one.payload() for one in metrics])


@given(st.sampled_from(Reducer), st.lists(st.lists(FINITE, min_size=2, max_size=2), min_size=1, max_size=12))
def test_metrics_are_reduced_over_batches_and_elements(reducer: Reducer, batches: list[list[float]]) -> None:
    """A vector is reduced to one NumPy scalar, by each of the reducers, whatever it is made of."""
    expected = pytest.approx(FUNCTIONS[reducer](batches), rel=1e-9, abs=1e-6)
    kinds: list[Any] = [torch.DoubleTensor, np.array, list]
    for kind in kinds:
        value = reduced([[{"a": kind(batch)} for batch in batches]], reducer)["a"]
        assert isinstance(value, np.generic)
        assert value == expected


@given(st.sampled_from(Reducer), st.lists(st.lists(FINITE, max_size=6), min_size=1, max_size=4).filter(any))
def test_the_division_over_processes_does_not_matter(reducer: Reducer, of_ranks: list[list[float]]) -> None:
    """However unequally batches are divided, all of them count alike; a process may have none."""
    value = reduced([[{"a": item} for item in rank] for rank in of_ranks], reducer)["a"]
    assert value == pytest.approx(FUNCTIONS[reducer](list(chain(*of_ranks))), rel=1e-9, abs=1e-6)


@given(st.lists(st.tuples(FINITE, st.integers(1, 9)), min_size=1, max_size=12), st.integers(1, 3))
def test_weighing_by_records_means_the_same_on_any_number_of_processes(batches: list[Any], ranks: int) -> None:
    """The mean over all records is exact, however they are divided into batches and processes."""
    metrics = [ValidationMetrics(Reducer.AVG, weigh_by_records=True) for _ in range(ranks)]
    for index, (value, records) in enumerate(batches):
        metrics[index % ranks].add({"a": value}, num_records=records)
    expected = np.average([value for value, _ in batches], weights=[records for _, records in batches])
    assert metrics[0].reduce([one.payload() for one in metrics])["a"] == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_integers_stay_integers() -> None:
    """The largest of them, and their sum, however a tensor or Python holds them."""
    reducers = {"a": Reducer.AVG, "s": Reducer.SUM, "x": Reducer.MAX}
    metrics = reduced([[{"a": i, "s": i, "x": torch.tensor(i)} for i in (1, 2)], [dict.fromkeys("asx", 6)]], reducers)
    assert metrics == {"a": 3.0, "s": 9, "x": 6}
    assert [isinstance(metrics[name], np.integer) for name in "asx"] == [False, True, True]


@pytest.mark.parametrize(
    ("reducer", "given"),
    [
        ({"a": Reducer.AVG}, r"reducers for \['a'\], metrics \['a', 'b'\]"),
        ({"a": Reducer.AVG, "b": Reducer.SUM, "c": Reducer.MAX}, r"reducers for \['a', 'b', 'c'\]"),
        ({"a": Reducer.AVG, "b": "sum"}, "'sum'"),
        ("mean", "'mean'"),
        (np.mean, "function mean"),
    ],
)
def test_reducers_that_do_not_fit_are_refused(reducer: Any, given: str) -> None:
    """Exactly the metrics there are must be named, each with a Reducer."""
    with pytest.raises(InvalidExperimentException, match=given):
        reduced([[{"a": 1.0, "b": 2.0}]], reducer)


def test_all_batches_have_the_same_names() -> None:
    """The error is a ValueError, and names the batch or the rank."""
    with pytest.raises(ValueError, match=r"\['a'\] for the first batch, \['b'\] for batch 1"):
        validation([{"a": 1}, {"b": 1}])
    with pytest.raises(ValueError, match=r"\['a'\] on rank 1, \['b'\] on rank 2"):
        reduced([[], [{"a": 1}], [{"b": 1}]])


@pytest.mark.parametrize("value", ["good", None, [1.0, [2.0]], {"x": 1}, torch.zeros(0), object(), 1j])
def test_what_is_not_a_number_cannot_be_reduced(value: Any) -> None:
    """The TypeError names the metric."""
    with pytest.raises(TypeError, match=r"metric 'worst(\[\d\])*'"):
        reduced([[{"fine": 1.0, "worst": value}]])


@pytest.mark.parametrize("reducer", Reducer)
def test_nan_and_infinities_are_kept(reducer: Reducer) -> None:
    """One batch with NaN makes the metric NaN, and an infinity is as any other value, without a warning."""
    assert math.isnan(reduced([[{"a": math.nan}, {"a": 1.0}]], reducer)["a"])
    assert math.isnan(reduced([[{"a": 1.0}], [{"a": math.nan}]], reducer)["a"])
    assert reduced([[{"a": math.inf}], [{"a": math.inf}]], reducer)["a"] == math.inf
    assert math.isnan(reduced([[{"a": [math.inf, -math.inf]}]])["a"])
    assert math.isnan(reduced([[{"a": math.inf}], [{"a": -math.inf}]], Reducer.SUM)["a"])


def test_outputs_are_the_metrics_of_each_batch() -> None:
    """Callbacks get those of this process, with arrays in place of tensors."""
    total = torch.zeros(())
    metrics = ValidationMetrics(Reducer.SUM)
    for index in range(2):
        total += 1
        metrics.add({"total": total, "row": torch.full((index + 1,), 2.0), "n": index})
    first, second = metrics.outputs()
    assert (first["total"], second["total"]) == (1.0, 2.0)
    assert first["total"].shape == ()
    assert second["row"].tolist() == [2.0, 2.0]
    assert second["n"] == 1
    assert metrics.reduce([metrics.payload()]) == {"total": 3.0, "row": 6.0, "n": 1}
    assert validation([{}, {}]).outputs() == [{}, {}]  # reducers may have all metrics
    assert reduced([[{}, {}]]) == {}


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (object(), "'a'"),
        ([1, {2}], r"'a\[1\]'"),
        ({"x": b""}, r"\"a\['x'\]\""),
        ({1: 2}, "'a'"),
        (1j, "'a'"),
        (np.array([1j]), r"'a\[0\]'"),
    ],
)
def test_metrics_that_json_cannot_hold_are_refused(value: Any, name: str) -> None:
    """The TypeError names the metric, and the place in it."""
    with pytest.raises(TypeError, match=f"The metric {name} cannot be written as JSON"):
        metrics_of_full_dataset({"fine": 1, "a": value})
