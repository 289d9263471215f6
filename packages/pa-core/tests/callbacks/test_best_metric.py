"""Which of the recorded values counts as the best."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pa_core import ConfigurationError
from pa_core.callbacks import BestMetric

VALUES = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=20)


@given(values=VALUES, greater_is_better=st.booleans())
def test_the_best_value_is_the_first_extreme_one(values: list[float], greater_is_better: bool) -> None:
    """Whatever is recorded, the best value is the extreme of all numbers, at the first epoch that had it."""
    best = BestMetric(greater_is_better)
    for epoch, value in enumerate(values, start=1):
        best.update(value, epoch)
    numbers = [value for value in values if not math.isnan(value)]
    if not numbers:
        assert best.value is None
        assert best.epoch is None
    else:
        extreme = max(numbers) if greater_is_better else min(numbers)
        assert best.value == extreme
        assert best.epoch == values.index(extreme) + 1


@given(values=VALUES, greater_is_better=st.booleans(), min_change=st.floats(0, 10))
def test_update_agrees_with_the_question_that_changes_nothing(
    values: list[float], greater_is_better: bool, min_change: float
) -> None:
    """``is_improved_by`` foretells what ``update`` does, and changes nothing."""
    best = BestMetric(greater_is_better, min_change)
    for epoch, value in enumerate(values, start=1):
        before = (best.value, best.epoch)
        foretold = best.is_improved_by(value)
        assert (best.value, best.epoch) == before
        assert best.update(value, epoch) is foretold
        assert (best.value, best.epoch) == ((value, epoch) if foretold else before)


@pytest.mark.parametrize(
    ("greater_is_better", "value", "improves"),
    [(False, 0.75, True), (False, 0.875, False), (True, 1.25, True), (True, 1.125, False), (True, 0.5, False)],
)
def test_a_change_below_the_threshold_is_no_improvement(greater_is_better: bool, value: float, improves: bool) -> None:
    """From a best value of 1, a change of 0.25 in the right direction counts, and one of 0.125 does not."""
    best = BestMetric(greater_is_better, min_change=0.25)
    best.update(1.0, epoch=1)
    assert best.is_improved_by(value) is improves


def test_small_steps_add_up() -> None:
    """Changes are measured from the best value, so that slow progress is progress."""
    best = BestMetric(min_change=0.25)
    values = [1.0, 0.875, 0.75, 0.625, 0.5]
    assert [best.update(value, epoch) for epoch, value in enumerate(values)] == [True, False, True, False, True]


@pytest.mark.parametrize("min_change", [-0.1, math.nan, math.inf])
def test_a_threshold_that_makes_no_sense_is_refused(min_change: float) -> None:
    """A negative threshold would call a worse value better; one that is not finite, none."""
    with pytest.raises(ConfigurationError, match="min_change"):
        BestMetric(min_change=min_change)
