"""Validations: by batch or by the whole dataset, their metrics, what callbacks hear, and which is the best so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from typing_extensions import override

import pa_trial
from pa_trial import Batch, DataLoader, InvalidExperimentException, NoMetricsError
from pa_trial.progress import TrialProgress
from pa_trial.reducer import Reducer
from pa_trial.settings import RunSettings
from pa_trial.validation_metrics import ValidationMetrics, metrics_of_full_dataset
from pa_trial.watched_metric import WatchedMetric, choose_watched_metric
from tests.support.trials import TinyTrial, callback, fit, fit_and_fail, returning, samples, variant

INHERITED: Any = pa_trial.PyTorchTrial.evaluate_batch


class ByBatch(TinyTrial):
    """Three batches, the last of which is short; each is the metric that it is."""

    def __init__(self, context: pa_trial.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.seen: list[tuple[int, bool, bool, int]] = []

    @override
    def build_validation_data_loader(self) -> DataLoader:
        return DataLoader(samples(9), batch_size=4)

    @override
    def before_batch(self, batch_idx: int) -> None:
        assert self.model.training
        assert torch.is_grad_enabled()

    @override
    def evaluate_batch(self, batch: list[Tensor], batch_idx: int) -> dict[str, Any]:
        self.seen.append((batch_idx, self.model.training, torch.is_grad_enabled(), len(batch[0])))
        return {"number": torch.tensor(float(batch_idx))}


def test_a_validation_by_batch(tmp_path: Path) -> None:
    """In eval mode, without gradients, batches counted from 0 in each; callbacks get the outputs as arrays.

    The next workload puts models back to train; after the last validation they stay as they are.
    """
    trial = fit(ByBatch, tmp_path, max_length=Batch(2), validation_period=Batch(1), step_zero_validation=True)
    assert trial.seen == [(0, False, False, 4), (1, False, False, 4), (2, False, False, 1)] * 3
    assert not trial.model.training
    assert trial.heard.validation == [{"number": 1.0}] * 3
    for outputs in trial.heard.outputs:
        assert [output["number"] for output in outputs] == [0, 1, 2]
        assert all(isinstance(output["number"], np.ndarray) for output in outputs)


def with_evaluate_batch(function: Any) -> type[TinyTrial]:
    """A trial with an ``evaluate_batch`` of its own."""
    return variant(TinyTrial, evaluate_batch=function)


def without_index(_self: TinyTrial, batch: Any) -> dict[str, Any]:
    """As several old examples have it."""
    return {"batches": len(batch)}


def with_any_arguments(_self: TinyTrial, **kwargs: Any) -> dict[str, Any]:
    """What hands on whatever it is called with."""
    return {f"{name} by name": 1 for name in kwargs}


@pytest.mark.parametrize(
    ("evaluate_batch", "names"),
    [(without_index, {"batches"}), (with_any_arguments, {"batch by name", "batch_idx by name"})],
)
def test_evaluate_batch_with_other_arguments(evaluate_batch: Any, names: set[str], tmp_path: Path) -> None:
    """The index is passed where it is wanted; all arguments by name."""
    (metrics,) = fit(with_evaluate_batch(evaluate_batch), tmp_path, max_length=Batch(1)).heard.validation
    assert metrics.keys() == names


@pytest.mark.parametrize(
    "trial_class",
    [with_evaluate_batch(INHERITED), variant(TinyTrial, evaluate_full_dataset=returning({}))],
    ids=["neither: what is inherited is assigned back", "both"],
)
def test_exactly_one_way_to_validate(trial_class: type[TinyTrial], tmp_path: Path) -> None:
    """It is refused when fit starts."""
    fit_and_fail(trial_class, tmp_path, InvalidExperimentException, "exactly one of", max_length=Batch(1))
    assert issubclass(InvalidExperimentException, Exception)


def test_a_class_named_as_its_base_overrides_too(tmp_path: Path) -> None:
    """Functions are compared, not the names of classes."""
    evaluate_batch = returning({"own": 1})
    evaluate_batch.__qualname__ = "PyTorchTrial.evaluate_batch"
    trial = fit(with_evaluate_batch(evaluate_batch), tmp_path, max_length=Batch(1))
    assert trial.notes.events == ["W1", "V1", "C1"]


def other_names(_self: TinyTrial, batch: Any, batch_idx: int) -> dict[str, Any]:
    """Another metric in each batch."""
    return {f"metric {batch_idx}": 1}


def of_dataset(returned: Any) -> type[TinyTrial]:
    """A trial that validates on the whole dataset."""
    return variant(TinyTrial, evaluate_full_dataset=returning(returned), evaluate_batch=INHERITED)


@pytest.mark.parametrize(
    ("trial_class", "error", "text"),
    [
        (with_evaluate_batch(other_names), ValueError, "metric 1"),
        (with_evaluate_batch(returning(torch.tensor(1.0))), NoMetricsError, "evaluate_batch"),
        (with_evaluate_batch(returning(None)), NoMetricsError, "None"),
        (of_dataset([1.0]), TypeError, "evaluate_full_dataset"),
        (of_dataset({"model": torch.nn.Linear(1, 1)}), TypeError, "model"),
    ],
)
def test_what_a_validation_must_return(
    trial_class: type[TinyTrial], error: type[Exception], text: str, tmp_path: Path
) -> None:
    """Metrics of the same names for all batches."""
    fit_and_fail(trial_class, tmp_path, error, text, max_length=Batch(1))


def test_counts_are_added_to_the_metrics_of_a_validation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After the callbacks have heard of them; a callback that keeps them sees them later."""
    kept: list[dict[str, Any]] = []

    with caplog.at_level("INFO", logger="pa_trial"):
        trial = fit(TinyTrial, tmp_path, {"keeps": callback(on_validation_end=kept.append)}, max_length=Batch(5))
    assert trial.heard.validation[0].keys() == {"val_loss"}
    assert (kept[0]["batches"], kept[0]["epochs"]) == (5, 1)
    assert any("validation" in record.message and "'batches': 5" in record.message for record in caplog.records)


def test_one_batch_in_test_mode(tmp_path: Path) -> None:
    """Of the validation too."""
    trial = fit(ByBatch, tmp_path, test_mode=True)
    assert [batch_idx for batch_idx, *_ in trial.seen] == [0]


@given(st.lists(st.floats(allow_nan=True)), st.booleans())
def test_each_record_is_better_than_all_before(values: list[float], smaller_is_better: bool) -> None:
    """A validation is better if its value is strictly smaller, or larger, than every number before; NaN never is."""
    progress = TrialProgress()
    watched = WatchedMetric("a", progress, smaller_is_better=smaller_is_better)
    sign = 1 if smaller_is_better else -1
    for index, value in enumerate(values):
        before = [sign * other for other in values[:index] if not math.isnan(other)]
        expected = not math.isnan(value) and all(sign * value < other for other in before)
        assert watched.record({"a": value}) == expected
    numbers = [value for value in values if not math.isnan(value)]
    assert progress.best_metric == ((min if smaller_is_better else max)(numbers) if numbers else None)


@pytest.mark.parametrize(
    "value", [1, np.float32(1), np.int64(1), np.array(1.0), np.array([1.0]), torch.tensor(1.0), True]
)
def test_any_single_number_can_be_watched(value: Any) -> None:
    """Whatever kind of number a validation yields."""
    progress = TrialProgress()
    assert WatchedMetric("a", progress).record({"a": value})
    assert progress.best_metric == 1.0


@pytest.mark.parametrize("value", ["good", None, [1.0, 2.0], {"x": 1}])
def test_other_values_cannot_be_watched(value: Any) -> None:
    """The TypeError names the metric."""
    with pytest.raises(TypeError, match="'a', which decides on the best checkpoint, is not a single number"):
        WatchedMetric("a", TrialProgress()).record({"a": value})


class Scores(TinyTrial):
    """Validates with one score after another."""

    def __init__(self, context: pa_trial.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.scores = iter([3.0, 1.0, math.nan, 2.0, 0.5])
        self.score = math.nan

    @override
    def before_batch(self, batch_idx: int) -> None:
        self.score = next(self.scores)

    @override
    def evaluate_batch(self, batch: list[Tensor], batch_idx: int) -> dict[str, Any]:
        return {"score": self.score}


def events(folder: Path, max_length: int = 5, latest: Path | None = None, **settings: Any) -> list[str]:
    """The checkpoints of a training that validates after each batch, by the default policy."""
    asked: dict[str, Any] = {"validation_period": Batch(1), "checkpoint_policy": "best", "latest_checkpoint": latest}
    trial = fit(Scores, folder, settings=settings, max_length=Batch(max_length), **asked)
    return [event for event in trial.notes.events if event.startswith("C")]


def test_a_checkpoint_follows_each_validation_that_is_better(tmp_path: Path) -> None:
    """With the policy "best", and at the end in any case."""
    assert events(tmp_path / "low", metric="score") == ["C1", "C2", "C5"]
    assert events(tmp_path / "high", metric="score", smaller_is_better=False) == ["C1", "C5"]
    assert events(tmp_path / "conf", exp_conf={"searcher": {"metric": "score"}}) == ["C1", "C2", "C5"]


def test_the_best_validation_is_known_to_a_training_that_resumes(tmp_path: Path) -> None:
    """No later validation is better than one before the interruption, so that only the last batch is saved."""
    assert events(tmp_path, 2, metric="score") == ["C1", "C2"]
    newest = max(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert events(tmp_path, 5, newest, metric="score") == ["C5"]


def test_a_metric_that_no_validation_has(tmp_path: Path) -> None:
    """The first validation tells which metrics there are."""
    with pytest.raises(InvalidExperimentException, match=r"no metric 'loss'(.|\n)*\['score'\]"):
        events(tmp_path, metric="loss")


@pytest.mark.parametrize("policy", ["all", "none"])
def test_other_policies_watch_nothing(policy: str) -> None:
    """A metric that is named does not matter then, and nothing is warned of."""
    assert choose_watched_metric(policy, TrialProgress(), RunSettings(Path(), metric="loss")) is None


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
