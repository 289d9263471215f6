"""Periods and lengths: after which batches a training pauses."""

from __future__ import annotations

import sys
from collections.abc import Container
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pa_trial.boundaries import Boundaries, Due, batches_of, is_due
from pa_trial.units import Batch, Epoch, TrainUnit

PERIODS: list[tuple[TrainUnit | None, list[int]]] = [
    (None, []),
    (Batch(1), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
    (Batch(0), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
    (Batch(-3), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
    (Batch(5), [5, 10]),
    (Batch(99), []),
    (Batch([2, 5, 99]), [2, 5]),
    (Batch([0, 3]), [3]),
    (Batch((7,)), [7]),
    (Batch({1, 12}), [1, 12]),
    (Batch(range(3, 9, 3)), [3, 6]),
    (Batch([]), []),
    (Batch(cast("int", np.int64(6))), [6, 12]),
    (Epoch(1), [4, 8, 12]),
    (Epoch(0), [4, 8, 12]),
    (Epoch(2), [8]),
    (Epoch([1, 3]), [4, 12]),
    (Epoch([0, 2, 9]), [8]),
    (Epoch(range(2, 100)), [8, 12]),
]


@pytest.mark.parametrize(("period", "expected"), PERIODS, ids=[repr(period) for period, _ in PERIODS])
def test_a_period_fires_after_these_of_twelve_batches(period: TrainUnit | None, expected: list[int]) -> None:
    """An epoch has four batches; step 0 never fires, and numbers beyond the end are ignored."""
    assert [batches for batches in range(13) if is_due(period, batches, 4)] == expected


def test_an_epoch_without_a_length_never_ends() -> None:
    """Neither as a period nor as a length."""
    assert not any(is_due(Epoch(1), batches, sys.maxsize) for batches in range(1000))
    assert batches_of(Epoch(1), sys.maxsize) == sys.maxsize


class Noted:
    """A container that can do no more than ``in``."""

    def __init__(self, steps: Container[int]) -> None:
        self.steps = steps

    def __contains__(self, step: object) -> bool:
        return isinstance(step, int) and step in self.steps


@given(steps=st.sets(st.integers(0, 60)), epoch_length=st.integers(1, 9))
def test_any_container_is_a_schedule(steps: set[int], epoch_length: int) -> None:
    """Only ``in`` is asked of it, with the number of the step, counted from 1."""
    of_batches, of_epochs = Batch(Noted(steps)), Epoch(Noted(steps))
    batches = range(61)
    assert [n for n in batches if is_due(of_batches, n, epoch_length)] == sorted(steps - {0})
    expected = [epoch * epoch_length for epoch in sorted(steps - {0}) if epoch * epoch_length <= 60]
    assert [n for n in batches if is_due(of_epochs, n, epoch_length)] == expected


@given(
    length=st.integers(0, 40),
    periods=st.tuples(*[st.none() | st.builds(Batch, st.integers(-1, 9)) | st.builds(Epoch, st.integers(-1, 4))] * 3),
    epoch_length=st.integers(1, 9),
)
def test_what_is_due_is_what_each_period_says(
    length: int, periods: tuple[TrainUnit | None, ...], epoch_length: int
) -> None:
    """A training pauses where at least one of its boundaries fires, and knows all that do."""
    validation, checkpoint, report = periods
    boundaries = Boundaries(
        length, validation=validation, checkpoint=checkpoint, report=report, epoch_length=epoch_length
    )
    for batches in range(1, 41):
        due = boundaries.after(batches) or Due()
        assert due.max_length == boundaries.is_complete(batches) == (batches >= length)
        assert (due.validation, due.checkpoint, due.report) == tuple(
            is_due(period, batches, epoch_length) for period in periods
        )
