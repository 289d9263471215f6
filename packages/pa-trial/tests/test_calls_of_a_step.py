"""What a trial adds to a step on two processes does not grow unnoticed."""

from __future__ import annotations

import pytest

from benchmarks.measures import loop_named
from benchmarks.tasks import TASKS
from benchmarks.within_a_step import calls_of_step

pytestmark = pytest.mark.runs_on("two_ranks")


def test_a_step_calls_few_functions() -> None:
    """Gradients are exchanged with fewer calls than those of `DistributedDataParallel`."""
    of_trial, by_hand = (calls_of_step(TASKS["digits"], loop_named(loop).train) for loop in ("trial", "by_hand"))

    assert of_trial.of_trainer <= 75
    assert of_trial.of_python <= by_hand.of_python
