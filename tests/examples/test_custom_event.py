"""The event of the trainer's own tells its listeners the mistakes of all processes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.launching import Launch

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_event.py"


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_listener_ends_the_training_and_another_one_reports(launch: Launch, ranks: int) -> None:
    """The run ends after the evaluation that found few mistakes, as many as were asked for, and says which."""
    launched = launch(EXAMPLE, "--mistakes=40", "--epochs=12", ranks=ranks)
    assert launched.status == 0
    assert "Stopping early: at most 40 digits are mistaken" in launched.output
    last = launched.output.splitlines()[-1]
    found = re.fullmatch(r"(\d+) of 297 digits are mistaken, most often (\d) for (\d), (\d+) times", last)
    assert found
    mistakes, digit, taken_for, times = map(int, found.groups())
    assert times <= mistakes <= 40
    assert digit != taken_for
