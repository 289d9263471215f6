"""A check leaves no trace: a run after it is the run that it would have been."""

from __future__ import annotations

import pytest

from pa_preflight import check
from tests.support.pa_preflight.configurations import Configuration, changed, state_of

SEEDS = [*range(10), *(pytest.param(seed, marks=pytest.mark.more_cases) for seed in range(10, 50))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_check_changes_nothing(seed: int) -> None:
    """Weights, gradients, modes, optimizer, history and random numbers, right after it and after the run."""
    configuration = Configuration.random(seed)
    checked = configuration.make()
    before = state_of(checked)
    check(checked.trainer, **checked.arguments)
    assert changed(before, state_of(checked)) == []
    checked.trainer.train(**checked.arguments)
    after_check = state_of(checked)

    unchecked = configuration.make()
    assert changed(before, state_of(unchecked)) == []
    unchecked.trainer.train(**unchecked.arguments)
    assert changed(after_check, state_of(unchecked)) == []
    assert "model" in changed(before, after_check)
