"""What is left of a run that is killed again and again is measured as the page says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.goodput.progress import Moments, ProgressFile, read_moments
from benchmarks.goodput.report import VARIANTS, Measured, as_page
from benchmarks.goodput.runs import Disturbed, Recovery, Undisturbed
from benchmarks.goodput.script import MOMENTS, PROGRESS
from benchmarks.goodput.script import main as run_script


def measured() -> Measured:
    """A run that needs half as long again as one that nothing disturbs, which makes 100 updates a second."""
    outcome = {"updates": 3000, "weights": "digest", "losses": [0.5]}
    recoveries = [Recovery(first, first + 0.1, 50, {"torch": 1.0, "first update": 0.5}) for first in (2.0, 3.0, 4.0)]
    return Measured(VARIANTS[0], Undisturbed(100.0, outcome), Disturbed(45.0, 3, recoveries, dict(outcome)), 0.021)


def test_goodput_is_the_share_of_the_undisturbed_throughput() -> None:
    """Updates that were made twice count once, and all the time from the first start to the end counts."""
    one = measured()
    assert one.goodput == pytest.approx(2 / 3)
    assert one.cells() == [
        "digits, as most scripts begin",
        "100",
        "3",
        "0.667",
        "3.00",
        "4.00",
        "3.10",
        "4.10",
        "0.50",
        "yes",
    ]


def test_an_end_that_differs_is_shown() -> None:
    """A weight or a loss of another bit is not the same run."""
    one = measured()
    other = replace(one, run=replace(one.run, outcome=one.run.outcome | {"losses": [0.25]}))
    assert (one.is_identical, other.is_identical) == (True, False)
    assert other.cells()[-1] == "NO"


def test_both_tables_are_written() -> None:
    """What is left, and where the time of a start goes; and whether the machine had anything else to do."""
    page = as_page([measured()], 15.0)
    assert "| digits, as most scripts begin | 100 | 3 | 0.667 |" in page
    assert "other programs used at most 2%" in page
    assert "| torch | 1.00 |\n| first update | 0.50 |\n| **together** | 1.50 |" in page


def test_the_script_notes_down_how_far_it_has_come(tmp_path: Path) -> None:
    """A resumed process tells its first update from the first one that had not been made before."""
    arguments = [str(tmp_path), "digits", "--save-every=1e9"]
    run_script([*arguments, "--updates=20"], Moments())
    file = ProgressFile(tmp_path / PROGRESS)
    before = file.read()
    assert (before.first_update, before.last_update) == (1, 20)
    file.write(before._replace(last_update=25))  # as if it had been killed five updates after its last state
    run_script([*arguments, "--updates=30"], Moments())
    after = file.read()
    assert (after.first_update, after.last_update) == (21, 30)
    assert before.last_time < after.first_time < after.regained_time < after.last_time
    assert list(read_moments(tmp_path / MOMENTS))[-1] == "first update"
