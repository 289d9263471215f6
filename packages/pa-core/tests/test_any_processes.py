"""A run ends with the same bits on one, two and three processes; the session ``any_processes`` tries many more."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.pa_core.any_processes.configuration import Configuration
from tests.support.pa_core.any_processes.launching import Attempt, difference, launch


def _each_time(seeds: Sequence[int], *, of: Sequence[int]) -> list[Any]:
    """Some seeds each time, and the others each night."""
    others = [pytest.param(seed, marks=pytest.mark.more_cases) for seed in of if seed not in seeds]
    return [*seeds, *others]


# Together these have each loop, layer, order, optimizer, precision, kind of schedule and callback.
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize("seed", _each_time((1, 9, 25, 44, 45, 49), of=range(12)))
def test_a_run_ends_the_same_on_one_two_and_three_processes(seed: int, tmp_path: Path) -> None:
    """With the same weights, states, history, files, predictions and fingerprint, whatever the run is made of."""
    _assert_same(Configuration.random(seed), tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize("seed", _each_time((4, 5), of=range(4, 9)))
def test_a_run_over_streams_ends_the_same_on_one_two_and_three_processes(seed: int, tmp_path: Path) -> None:
    """Where samples are read forwards and come at random out of a buffer, in training, evaluation and prediction."""
    _assert_same(replace(Configuration.random(seed), has_streams=True), tmp_path)


def _assert_same(configuration: Configuration, tmp_path: Path) -> None:
    (expected,) = launch(Attempt(configuration, 1, tmp_path / "1"))
    for number in (2, 3):
        assert difference(Attempt(configuration, number, tmp_path / str(number)), expected) is None
