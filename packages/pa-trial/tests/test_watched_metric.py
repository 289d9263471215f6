"""The metric that tells which validation is the best so far."""

from __future__ import annotations

import math
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
from pa_trial import Batch, InvalidExperimentException
from pa_trial.progress import TrialProgress
from pa_trial.settings import RunSettings
from pa_trial.watched_metric import WatchedMetric, choose_watched_metric
from tests.support.trials import TinyTrial, fit


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
    with pytest.raises(TypeError, match="'a', which should find the best checkpoint, is not a single number"):
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
