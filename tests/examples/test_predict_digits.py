"""The example of predictions writes each test digit once, and says of the file what is in it."""

from __future__ import annotations

import csv
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.examples.shared_launches import SharedLaunches
from tests.examples.ways import WAYS

EXAMPLE = Path(__file__).parents[2] / "examples" / "predict_digits.py"


@pytest.mark.parametrize("way", WAYS[:2])
def test_the_file_has_each_sample_once_and_the_printed_accuracy(shared_launch: SharedLaunches, way: str) -> None:
    """The digits of the file are those of the test set, in its order, and the printed share is that of its guesses."""
    launched = shared_launch("predict_digits", way)
    assert launched.status == 0

    example: dict[str, Any] = runpy.run_path(str(EXAMPLE))
    with (launched.folder / "outputs" / "predict_digits" / "digits.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["digit"]) for row in rows] == [int(digit) for _, digit in example["load_data"]()[1]]
    right = sum(row["digit"] == row["guess"] for row in rows)
    assert f"digits.csv has 300 predictions, {right / 300:.1%} of them are right." in launched.output
    least_certain = min(rows, key=lambda row: float(row["certainty"]))
    assert f"with a certainty of {float(least_certain['certainty']):.1%}." in launched.output
