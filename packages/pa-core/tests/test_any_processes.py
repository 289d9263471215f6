"""A run ends with the same bits on one, two and three processes; the session ``any_processes`` tries many more."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.pa_core.any_processes.configuration import Configuration
from tests.support.pa_core.any_processes.launching import Attempt, difference, launch


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize("seed", range(12))
def test_a_run_ends_the_same_on_one_two_and_three_processes(seed: int, tmp_path: Path) -> None:
    """With the same weights, states, history, files, predictions and fingerprint, whatever the run is made of."""
    _assert_same(Configuration.random(seed), tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize("seed", range(4, 9))
def test_a_run_over_streams_ends_the_same_on_one_two_and_three_processes(seed: int, tmp_path: Path) -> None:
    """Where samples are read forwards and come at random out of a buffer, in training, evaluation and prediction."""
    _assert_same(replace(Configuration.random(seed), has_streams=True), tmp_path)


def _assert_same(configuration: Configuration, tmp_path: Path) -> None:
    (expected,) = launch(Attempt(configuration, 1, tmp_path / "1"))
    for number in (2, 3):
        assert difference(Attempt(configuration, number, tmp_path / str(number)), expected) is None
