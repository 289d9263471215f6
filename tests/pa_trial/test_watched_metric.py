"""The metric that tells which validation is the best so far."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pa_trial.errors import InvalidExperimentException
from pa_trial.progress import TrialProgress
from pa_trial.watched_metric import WatchedMetric, choose_watched_metric


def chosen(policy: str = "best", **changes: Any) -> WatchedMetric | None:
    """The metric that a policy watches, by what init and the experiment configuration say."""
    settings: dict[str, Any] = {"metric": None, "smaller_is_better": True, "searcher": {}, **changes}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return choose_watched_metric(policy, TrialProgress(), **settings)


@given(st.lists(st.floats(allow_nan=True)), st.booleans())
def test_each_record_is_better_than_all_before(values: list[float], smaller_is_better: bool) -> None:
    """A validation is better if its value is strictly smaller, or larger, than every number before; NaN never is."""
    watched = WatchedMetric("a", TrialProgress(), smaller_is_better=smaller_is_better)
    sign = 1 if smaller_is_better else -1
    for index, value in enumerate(values):
        before = [sign * other for other in values[:index] if not math.isnan(other)]
        expected = not math.isnan(value) and all(sign * value < other for other in before)
        assert watched.is_better({"a": value}) == expected
        assert watched.record({"a": value}) == expected
    numbers = [value for value in values if not math.isnan(value)]
    assert watched.best == ((min if smaller_is_better else max)(numbers) if numbers else None)


def test_the_best_value_outlasts_the_process() -> None:
    """It is among the counters that a checkpoint keeps."""
    progress = TrialProgress(best_metric=0.25)
    watched = WatchedMetric("a", progress)
    assert not watched.record({"a": 0.5})
    assert watched.record({"a": 0.125})
    assert progress.best_metric == 0.125


@pytest.mark.parametrize(
    "value", [1, np.float32(1), np.int64(1), np.array(1.0), np.array([1.0]), torch.tensor(1.0), True]
)
def test_any_single_number_can_be_watched(value: Any) -> None:
    """Whatever kind of number a validation yields."""
    watched = WatchedMetric("a", TrialProgress())
    assert watched.record({"a": value})
    assert watched.best == 1.0


@pytest.mark.parametrize("value", ["good", None, [1.0, 2.0], {"x": 1}])
def test_other_values_cannot_be_watched(value: Any) -> None:
    """The TypeError names the metric."""
    with pytest.raises(TypeError, match="'a', which is to find the best checkpoint, is not a single number"):
        WatchedMetric("a", TrialProgress()).is_better({"a": value})


def test_a_validation_without_the_metric() -> None:
    """The error tells which metrics there are."""
    with pytest.raises(InvalidExperimentException, match=r"no metric 'accuracy'(.|\n)*\['acc', 'loss'\]"):
        WatchedMetric("accuracy", TrialProgress()).is_better({"acc": 1.0, "loss": 2.0})


@pytest.mark.parametrize(
    ("settings", "name", "smaller_is_better"),
    [
        ({"metric": "loss"}, "loss", True),
        ({"metric": "acc", "smaller_is_better": False}, "acc", False),
        ({"searcher": {"metric": "loss"}}, "loss", True),
        ({"searcher": {"metric": "acc", "smaller_is_better": False}}, "acc", False),
        ({"metric": "f1", "smaller_is_better": False, "searcher": {"metric": "loss"}}, "f1", False),
        ({"metric": "f1", "searcher": {"metric": "acc", "smaller_is_better": False}}, "f1", True),
    ],
)
def test_where_the_metric_is_named(settings: dict[str, Any], name: str, smaller_is_better: bool) -> None:
    """What init is told goes before the searcher of the experiment configuration, with its direction."""
    watched = chosen(**settings)
    assert watched is not None
    assert (watched.name, watched.smaller_is_better) == (name, smaller_is_better)


def test_best_without_a_metric_becomes_all() -> None:
    """A warning tells so, and what to pass."""
    with pytest.warns(UserWarning, match="'best'.*falling back to checkpoint_policy='all'.*metric="):
        assert choose_watched_metric("best", TrialProgress(), metric=None, smaller_is_better=True, searcher={}) is None


@pytest.mark.parametrize("policy", ["all", "none"])
def test_other_policies_watch_nothing(policy: str) -> None:
    """A metric that is named does not matter then, and nothing is warned of."""
    assert chosen(policy, metric="loss") is None
