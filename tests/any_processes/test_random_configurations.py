"""A run ends with the same bits on any number of processes, whatever it is made of."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.pa_core.any_processes.configuration import Configuration
from tests.support.pa_core.any_processes.launching import Attempt, difference, launch


@pytest.mark.parametrize(
    ("seed", "has_streams"), [*((seed, False) for seed in range(200)), *((seed, True) for seed in range(40))]
)
def test_a_run_ends_the_same_on_any_number_of_processes(seed: int, has_streams: bool, tmp_path: Path) -> None:
    """With the same weights, states of optimizers and schedulers, history, files, predictions and fingerprint."""
    configuration = replace(Configuration.random(seed), has_streams=has_streams)
    (expected,) = launch(Attempt(configuration, 1, tmp_path / "1"))
    for number in random.Random(seed).sample(range(2, 8), 2):
        assert difference(Attempt(configuration, number, tmp_path / str(number)), expected) is None


def test_it_does_not_without_the_option(tmp_path: Path) -> None:
    """Of a dozen of these runs, most end with other weights on two processes; sums can be equal by chance."""
    equal: list[int] = []
    for seed in range(12):
        configuration = replace(Configuration.random(seed), is_reproducible=False)
        (expected,) = launch(Attempt(configuration, 1, tmp_path / f"{seed}_on_1"))
        if difference(Attempt(configuration, 2, tmp_path / f"{seed}_on_2"), expected) is None:
            equal.append(seed)
    assert len(equal) <= 2, equal
