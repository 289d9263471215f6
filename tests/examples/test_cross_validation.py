"""The example of cross-validation judges settings by folds, and the final model by digits that no trial has seen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.shared_launches import SharedLaunches
from tests.examples.ways import WAYS

pytest.importorskip("optuna")

EXAMPLE = Path(__file__).parents[2] / "examples" / "cross_validation.py"


def test_the_lowest_of_the_complete_means_is_chosen(shared_launch: SharedLaunches) -> None:
    """Trials that were stopped after a fold do not count, and settings are those of one process for all."""
    launched = shared_launch("cross_validation", WAYS[1])
    assert launched.status == 0

    trials = re.findall(r"^Trial \d: ([\d.]+) over (\d) folds$", launched.output, re.MULTILINE)
    (best,) = re.findall(r"^The best mean over the folds is ([\d.]+): learning_rate=", launched.output, re.MULTILINE)
    assert len(trials) == 3
    assert float(best) == min(float(mean) for mean, folds in trials if folds == "3")
