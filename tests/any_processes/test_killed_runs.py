"""A run that is killed and goes on with other processes ends with the bits of one that one process has trained."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.pa_core.any_processes.comparison import first_difference
from tests.support.pa_core.any_processes.configuration import Configuration
from tests.support.pa_core.any_processes.launching import Attempt, difference, launch
from tests.support.pa_core.any_processes.training import Kill


def _kill(draw: random.Random, configuration: Configuration, processes: int, updates: int) -> Kill:
    """After an update on any process, or in an evaluation on the first one, which has a batch of each."""
    if draw.random() < 0.4:
        return Kill("evaluation", draw.randint(1, 2 * len(configuration.eval_sizes)))
    return Kill("update", draw.randint(1, updates), draw.randrange(processes))


@pytest.mark.parametrize(
    ("seed", "has_streams"), [*((seed, False) for seed in range(200, 260)), *((seed, True) for seed in range(200, 215))]
)
def test_a_killed_run_goes_on_with_other_processes(seed: int, has_streams: bool, tmp_path: Path) -> None:
    """Killed at least once, perhaps again after it was resumed, each time with another number of processes."""
    configuration = replace(Configuration.random(seed), has_streams=has_streams)
    draw = random.Random(seed)
    (expected,) = launch(Attempt(configuration, 1, tmp_path / "whole"))
    first, second, third = draw.sample(range(1, 8), 3)
    kill = _kill(draw, configuration, first, int(expected["updates"]))
    assert launch(Attempt(configuration, first, tmp_path / "killed", saves_states=True, kill=kill)) == []
    again = Kill("update", draw.randint(1, 3))  # the end may come before
    for result in launch(Attempt(configuration, second, tmp_path / "killed", saves_states=True, kill=again))[:1]:
        assert first_difference(result, expected) is None
    assert difference(Attempt(configuration, third, tmp_path / "killed", saves_states=True), expected) is None
